import { useMutation, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { reportAuthorized } from "./connection";

/** Exchanges the server's token for a session cookie. */
export function useLogin() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (token: string) => unwrap(client.POST("/api/login", { body: { token } })),
    onSuccess: () => {
      reportAuthorized(true);
      void queries.resetQueries();
    },
  });
}
