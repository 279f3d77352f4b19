import type { RunSummary } from "../api/types";

type Candidate = Pick<RunSummary, "id" | "project" | "state" | "started_at">;

/** The runs that one can be compared with: those of its project first, and of these the ones that ended well. */
export function candidates<T extends Candidate>(
  runs: readonly T[],
  run: Pick<Candidate, "id" | "project">,
): T[] {
  const place = (one: Candidate) =>
    (one.project === run.project ? 0 : 2) + (one.state === "finished" ? 0 : 1);
  return runs
    .filter((one) => one.id !== run.id)
    .sort((a, b) => place(a) - place(b) || b.started_at - a.started_at);
}
