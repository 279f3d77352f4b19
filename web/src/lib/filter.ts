/** The list's filter, as its address says it: `?q=llama&state=running&project=legal`. */

export const STATES = ["running", "late", "finished", "halted", "failed", "died", "lost"] as const;
export type State = (typeof STATES)[number];

export interface RunFilter {
  text: string;
  state: State | null;
  project: string | null;
}

interface Filterable {
  id: string;
  name: string;
  project: string;
  state: State;
  nodes: string[];
  sentence: string;
}

export function readFilter(params: URLSearchParams): RunFilter {
  return {
    text: params.get("q") ?? "",
    state: STATES.find((state) => state === params.get("state")) ?? null,
    project: params.get("project") || null,
  };
}

export function writeFilter(filter: RunFilter): URLSearchParams {
  const params = new URLSearchParams();
  if (filter.text) params.set("q", filter.text);
  if (filter.state) params.set("state", filter.state);
  if (filter.project) params.set("project", filter.project);
  return params;
}

/** Runs that contain every word of the text in their name, id, project, nodes or diagnosis. */
export function matchText<R extends Filterable>(runs: readonly R[], text: string): R[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => {
    const hay = [run.name, run.id, run.project, run.sentence, ...run.nodes].join("\n").toLowerCase();
    return words.every((word) => hay.includes(word));
  });
}

/** How many runs are in each state. */
export function countStates(runs: readonly Filterable[]): Record<State, number> {
  const counts = { running: 0, late: 0, finished: 0, halted: 0, failed: 0, died: 0, lost: 0 };
  for (const run of runs) counts[run.state] += 1;
  return counts;
}
