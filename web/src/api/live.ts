/** Server-sent events: what changed on the server is asked for again. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { backoff, paced } from "../lib/pace";
import { reportLive, reportReachable, useConnection } from "./connection";
import { keys } from "./queries";
import type { Changed, RunDetail } from "./types";

/** Milliseconds between two fetches of what a change touches: numbers at once, figures a little less often. */
const PACE = { numbers: 500, figures: 800 };

/** Keeps the page up to date while it is visible; with a run's id, listens to this run only. */
export function useLive(run: string | null): void {
  const queries = useQueryClient();
  const { authorized } = useConnection();
  useEffect(() => (authorized ? connect(queries, run) : undefined), [queries, run, authorized]);
}

let reconnectNow: () => void = () => {};

/** Tries to reach the server at once instead of at the next attempt. */
export function retryNow(): void {
  reconnectNow();
}

function connect(queries: QueryClient, run: string | null): () => void {
  const changed = new Set<string>();
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let failures = 0;
  let missed = false;
  let fresh = true;

  const numbers = paced(() => {
    const touched = [...changed];
    changed.clear();
    return Promise.all([
      refresh(queries, keys.runs),
      ...touched.flatMap((id) => [refresh(queries, keys.detail(id)), refresh(queries, keys.series(id))]),
    ]);
  }, PACE.numbers);
  const figures = paced(() => (run ? refresh(queries, keys.charts(run)) : Promise.resolve()), PACE.figures);

  function open(): void {
    clearTimeout(timer);
    source?.close();
    reportLive(failures || missed ? "reconnecting" : "connecting");
    fresh = true;
    source = new EventSource(run ? `/api/events?run=${encodeURIComponent(run)}` : "/api/events");
    source.onopen = () => {
      failures = 0;
      reportLive("live");
      reportReachable(true);
      // What happened while nobody listened was told to nobody.
      if (missed) void queries.invalidateQueries();
      missed = false;
    };
    source.onerror = () => {
      source?.close();
      failures += 1;
      missed = true;
      reportLive("reconnecting");
      timer = setTimeout(open, backoff(failures));
      // Tells a server that is away from one that wants a token.
      if (failures === 1) void queries.invalidateQueries({ queryKey: run ? keys.detail(run) : keys.runs });
    };
    source.addEventListener("changed", (event: MessageEvent<string>) => {
      const message = read(event.data);
      if (message === null) return;
      // A stream begins with the present version, which the page may have loaded already.
      const known = queries.getQueryData<RunDetail>(keys.detail(message.run))?.version ?? -1;
      const repeated = fresh && known >= message.version;
      fresh = false;
      if (repeated) return;
      changed.add(message.run);
      numbers.call();
      if (message.run === run) figures.call();
    });
  }

  // Browsers allow six connections to a server: pages that nobody looks at give theirs back.
  function onVisibility(): void {
    if (document.hidden) {
      clearTimeout(timer);
      source?.close();
      source = null;
      missed = true;
      reportLive("paused");
    } else if (source === null) open();
  }

  document.addEventListener("visibilitychange", onVisibility);
  reconnectNow = () => {
    failures = 0;
    missed = true;
    void queries.invalidateQueries();
    open();
  };
  if (document.hidden) onVisibility();
  else open();
  return () => {
    reconnectNow = () => {};
    document.removeEventListener("visibilitychange", onVisibility);
    clearTimeout(timer);
    numbers.cancel();
    figures.cancel();
    source?.close();
  };
}

function refresh(queries: QueryClient, queryKey: readonly unknown[]): Promise<void> {
  return queries.invalidateQueries({ queryKey });
}

function read(data: string): Changed | null {
  try {
    const message: Partial<Changed> | null = JSON.parse(data);
    if (typeof message?.run === "string" && typeof message.version === "number")
      return { run: message.run, version: message.version };
  } catch {
    // Not ours; a later server may send other things.
  }
  return null;
}
