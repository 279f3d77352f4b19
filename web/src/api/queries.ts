import { QueryClient } from "@tanstack/react-query";
import { ApiError } from "./client";

/** The one place that knows under which key a resource is cached. */
export const keys = {
  runs: ["runs"] as const,
  rules: (project: string) => ["rules", project] as const,
  session: ["session"] as const,
  loginWays: ["login"] as const,
  tokens: (project: string | null) => ["tokens", project] as const,
  sessions: ["sessions"] as const,
  channels: (project: string | null) => ["channels", project] as const,
  deliveries: (project: string | null, channel: number) => ["deliveries", project, channel] as const,
  alertDeliveries: (run: string, alert: number) => ["deliveries", "alert", run, alert] as const,
  retention: (project: string) => ["retention", project] as const,
  silences: (project: string) => ["silences", project] as const,
  run: (id: string) => ["run", id] as const,
  detail: (id: string) => ["run", id, "detail"] as const,
  series: (id: string) => ["run", id, "series"] as const,
  charts: (id: string) => ["run", id, "chart"] as const,
};

export function createQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        // Nothing changes without an event that says so.
        staleTime: Number.POSITIVE_INFINITY,
        refetchOnWindowFocus: false,
        refetchOnReconnect: false,
        // The events' own reconnection fetches everything again.
        networkMode: "always",
        retry: (failures, error) => error instanceof ApiError && error.passing && failures < 1,
        retryDelay: 800,
      },
      mutations: { networkMode: "always" },
    },
  });
}
