import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

/** Days after a run was heard last; null for ever. */
export interface Kept {
  raw: number | null;
  rollups: number | null;
  runs: number | null;
}

/** How long a project keeps its data. */
export function useRetention(project: string) {
  return useQuery({
    queryKey: keys.retention(project),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/api/projects/{project}/retention", { params: { path: { project } }, signal })),
  });
}

/** Sets how long a project keeps its data. */
export function useSetRetention(project: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (kept: Kept) =>
      unwrap(client.PUT("/api/projects/{project}/retention", { params: { path: { project } }, body: kept })),
    onSuccess: (found) => queries.setQueryData(keys.retention(project), found),
  });
}

/** Deletes a run for ever. */
export function useDeleteRun(id: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: () => unwrap(client.DELETE("/api/runs/{run}", { params: { path: { run: id } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["runs"] }),
  });
}
