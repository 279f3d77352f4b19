import { useQuery } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

/** A run beside another one; fetched anew when either has changed. */
export function useComparison(id: string, other: string | null) {
  return useQuery({
    queryKey: [...keys.run(id), "compare", other],
    enabled: other !== null,
    queryFn: ({ signal }) =>
      unwrap(
        client.GET("/api/runs/{run}/compare/{other}", {
          params: { path: { run: id, other: other ?? "" } },
          signal,
        }),
      ),
  });
}
