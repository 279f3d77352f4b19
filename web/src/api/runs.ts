import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

/** The newest runs, of one project or of all. */
export function useRuns(project: string | null, limit: number) {
  return useQuery({
    queryKey: [...keys.runs, project, limit],
    queryFn: ({ signal }) =>
      unwrap(client.GET("/api/runs", { params: { query: { limit, ...(project && { project }) } }, signal })),
    placeholderData: keepPreviousData,
  });
}
