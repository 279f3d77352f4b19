import { useQuery } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

export function useRun(id: string) {
  return useQuery({
    queryKey: keys.detail(id),
    queryFn: ({ signal }) => unwrap(client.GET("/api/runs/{run}", { params: { path: { run: id } }, signal })),
  });
}
