import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";
import type { OptionValue } from "./types";

/** All rules, and what a project sets of them. */
export function useRules(project: string) {
  return useQuery({
    queryKey: keys.rules(project),
    queryFn: ({ signal }) =>
      unwrap(client.GET("/api/projects/{project}/rules", { params: { path: { project } }, signal })),
  });
}

/** Replaces a project's settings of rules. */
export function useSetRules(project: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (settings: Record<string, Record<string, OptionValue>>) =>
      unwrap(
        client.PUT("/api/projects/{project}/rules", { params: { path: { project } }, body: { settings } }),
      ),
    onSuccess: (rules) => queries.setQueryData(keys.rules(project), rules),
  });
}

/** What a rule with these options would have said of the project's newest runs. */
export function useBacktest(rule: string, project: string) {
  return useMutation({
    mutationFn: (settings: Record<string, OptionValue>) =>
      unwrap(
        client.POST("/api/rules/{rule}/backtest", {
          params: { path: { rule } },
          body: { settings, project, limit: 20 },
        }),
      ),
  });
}
