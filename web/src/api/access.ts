import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { reportAuthorized } from "./connection";
import { keys } from "./queries";
import type { NewToken, Scope, TokenInfo } from "./types";

/** What a new token is to be; without a project it is of all. */
export interface TokenWish {
  name: string;
  project: string;
  scopes: Scope[];
  days: number | null;
}

/** Who asks, and what they may do. */
export function useSession() {
  return useQuery({
    queryKey: keys.session,
    queryFn: ({ signal }) => unwrap(client.GET("/api/session", { signal })),
  });
}

/** How one gets in; asked for on the login page, so it counts as no refusal when it fails. */
export function useLoginWays() {
  return useQuery({
    queryKey: keys.loginWays,
    queryFn: ({ signal }) => unwrap(client.GET("/api/login", { signal })),
  });
}

/** Tokens: of a project, or all of the installation for null. */
export function useTokens(project: string | null, enabled: boolean) {
  return useQuery({
    queryKey: keys.tokens(project),
    queryFn: ({ signal }): Promise<TokenInfo[]> =>
      project === null
        ? unwrap(client.GET("/api/admin/tokens", { signal }))
        : unwrap(client.GET("/api/projects/{project}/tokens", { params: { path: { project } }, signal })),
    enabled,
  });
}

/** Makes a token; `project` is whose admin asks, null for the installation's. */
export function useMakeToken(project: string | null) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: ({ project: wanted, ...wish }: TokenWish): Promise<NewToken> =>
      project === null
        ? unwrap(client.POST("/api/admin/tokens", { body: { ...wish, project: wanted } }))
        : unwrap(
            client.POST("/api/projects/{project}/tokens", { params: { path: { project } }, body: wish }),
          ),
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.tokens(project) }),
  });
}

/** Revokes a token. */
export function useRevokeToken(project: string | null) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (token: string) =>
      project === null
        ? unwrap(client.DELETE("/api/admin/tokens/{token}", { params: { path: { token } } }))
        : unwrap(
            client.DELETE("/api/projects/{project}/tokens/{token}", { params: { path: { project, token } } }),
          ),
    onSuccess: () =>
      Promise.all([
        queries.invalidateQueries({ queryKey: keys.tokens(project) }),
        queries.invalidateQueries({ queryKey: keys.sessions }),
      ]),
  });
}

/** The browsers that are logged in; only the installation's admin may ask. */
export function useSessions(enabled: boolean) {
  return useQuery({
    queryKey: keys.sessions,
    queryFn: ({ signal }) => unwrap(client.GET("/api/admin/sessions", { signal })),
    enabled,
  });
}

/** Ends a session: its browser has to log in again. */
export function useEndSession() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (session: string) =>
      unwrap(client.DELETE("/api/admin/sessions/{session}", { params: { path: { session } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.sessions }),
  });
}

/** Logs this browser out. */
export function useLogout() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: () => unwrap(client.POST("/api/logout", {})),
    onSuccess: () => {
      reportAuthorized(false);
      queries.clear();
    },
  });
}
