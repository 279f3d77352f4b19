import { useMutation, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

/** For how many hours; null is for ever, and "end" makes the alert heard again. */
export type Silence = number | null | "end";

/** Silences an alert of a run, or makes it heard again. */
export function useSilence(run: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: ({ alert, silence }: { alert: number; silence: Silence }) => {
      const params = { path: { run, alert } };
      return silence === "end"
        ? unwrap(client.DELETE("/api/runs/{run}/alerts/{alert}/silence", { params }))
        : unwrap(client.PUT("/api/runs/{run}/alerts/{alert}/silence", { params, body: { hours: silence } }));
    },
    onSuccess: () =>
      Promise.all([
        queries.invalidateQueries({ queryKey: keys.detail(run) }),
        queries.invalidateQueries({ queryKey: keys.runs }),
      ]),
  });
}
