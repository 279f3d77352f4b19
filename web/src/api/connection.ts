/** What the page knows of its server: does it answer, are we let in, do live events arrive. */
import { useSyncExternalStore } from "react";

export type LiveState = "connecting" | "live" | "reconnecting" | "paused";

export interface Connection {
  live: LiveState;
  reachable: boolean;
  authorized: boolean;
  /** When the server was last known to answer, in Unix seconds; 0: not yet. */
  heardAt: number;
}

let current: Connection = { live: "connecting", reachable: true, authorized: true, heardAt: 0 };
const listeners = new Set<() => void>();

function update(change: Partial<Connection>): void {
  const keys = Object.keys(change) as (keyof Connection)[];
  if (keys.every((key) => current[key] === change[key])) return;
  current = { ...current, ...change };
  for (const listener of listeners) listener();
}

export function reportReachable(reachable: boolean): void {
  update(reachable ? { reachable, heardAt: Math.floor(Date.now() / 1000) } : { reachable });
}

export function reportAuthorized(authorized: boolean): void {
  update({ authorized });
}

export function reportLive(live: LiveState): void {
  update({ live });
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useConnection(): Connection {
  return useSyncExternalStore(subscribe, () => current);
}
