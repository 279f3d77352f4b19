import { useQuery } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

/** Which series a run has, with the last value of each. */
export function useSeries(id: string) {
  return useQuery({
    queryKey: keys.series(id),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/api/runs/{run}/series", { params: { path: { run: id } }, signal })),
  });
}
