import { useMutation, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";

export type Action = "halt" | "checkpoint";

/** Asks a run for something; it is delivered with the answer to its agent's next shipment. */
export function useCommand(id: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (command: { action: Action; reason: string }) =>
      unwrap(client.POST("/api/runs/{run}/commands", { params: { path: { run: id } }, body: command })),
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.detail(id) }),
  });
}
