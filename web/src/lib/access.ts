import type { Scope, TokenInfo } from "../api/types";
import { formatMoment } from "./time";

/** What each scope lets one do, in the order in which they are offered. */
export const SCOPES: { scope: Scope; title: string; says: string }[] = [
  { scope: "ingest", title: "Ingest", says: "ship runs, as an agent does, and see nothing" },
  { scope: "read", title: "Read", says: "look at runs, charts and alerts" },
  { scope: "write", title: "Write", says: "also halt runs, silence alerts, set rules" },
  { scope: "admin", title: "Admin", says: "everything, tokens and channels too" },
];

export type TokenState = "valid" | "expired" | "revoked";

/** Whether a token still opens anything. */
export function tokenState(token: Pick<TokenInfo, "expires_at" | "revoked_at">, now: number): TokenState {
  if (token.revoked_at !== null) return "revoked";
  return token.expires_at !== null && token.expires_at <= now ? "expired" : "valid";
}

/** When a token stops, or stopped, to be of use. */
export function formatEnd(token: Pick<TokenInfo, "expires_at" | "revoked_at">, now: number): string {
  if (token.revoked_at !== null) return `revoked ${formatMoment(token.revoked_at, now)}`;
  if (token.expires_at === null) return "never";
  return formatMoment(token.expires_at, now);
}

/** The lines that make use of a new token: where one trains for an agent's, else how to send it. */
export function howToUse(token: string, scopes: Scope[], project: string, server: string): string {
  if (!scopes.includes("ingest") && !scopes.includes("admin"))
    return `curl -H "Authorization: Bearer ${token}" ${server}/api/runs`;
  const lines = [`export TRAINWATCH_SERVER=${server}`, `export TRAINWATCH_TOKEN=${token}`];
  return (project ? [...lines, `export TRAINWATCH_PROJECT=${project}`] : lines).join("\n");
}

/** Why a login with the OpenID provider came to nothing; the server puts the word into the address. */
export function loginProblem(search: string): string | null {
  const reason = new URLSearchParams(search).get("login");
  if (reason === null) return null;
  const says: Record<string, string> = {
    declined: "The provider did not log you in.",
    expired: "That took too long, or began in another browser: try again.",
    failed: "The provider does not answer as it should; the server's log says more.",
    nobody: "You are known to the provider, but nobody has given you access to this server.",
  };
  return says[reason] ?? "The login did not work: try again.";
}
