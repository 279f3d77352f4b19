import type { State } from "./filter";
import { fromWire, isNonFinite, type WireNumber } from "./numbers";

/** What a state is called, and the colour (a CSS variable) and shape by which it is recognised. */
export interface StateLook {
  label: string;
  colour: string;
  glyph: "pulse" | "check" | "stop" | "cross" | "skull" | "silence";
  meaning: string;
}

export const STATE_LOOKS: Record<State, StateLook> = {
  running: {
    label: "Running",
    colour: "var(--tw-accent)",
    glyph: "pulse",
    meaning: "The run reports and goes on.",
  },
  late: {
    label: "Late",
    colour: "var(--tw-warning)",
    glyph: "silence",
    meaning: "Nothing was heard of the run for some seconds; it may well go on.",
  },
  finished: {
    label: "Finished",
    colour: "var(--tw-good)",
    glyph: "check",
    meaning: "The training came to its end.",
  },
  halted: {
    label: "Halted",
    colour: "var(--tw-warning)",
    glyph: "stop",
    meaning: "TrainWatch stopped the run before it was ruined, or somebody asked for it.",
  },
  failed: {
    label: "Failed",
    colour: "var(--tw-critical)",
    glyph: "cross",
    meaning: "The training raised an exception.",
  },
  died: {
    label: "Died",
    colour: "var(--tw-critical)",
    glyph: "skull",
    meaning: "The process is gone and could not say why.",
  },
  lost: {
    label: "Lost",
    colour: "var(--tw-quiet)",
    glyph: "silence",
    meaning: "Nothing was heard of the run for a while; it may still train.",
  },
};

interface Progress {
  step: number;
  max_steps: number;
}

/** Share of the steps that are done, 0 to 1; null when it is not known how many there will be. */
export function progress(run: Progress): number | null {
  return run.max_steps > 0 ? Math.min(1, Math.max(0, run.step / run.max_steps)) : null;
}

interface Timed extends Progress {
  state: State;
  started_at: number;
  last_event_at: number;
  sparkline: { step: number[] };
}

/** Seconds that a running run still needs at its average pace; null when that cannot be said yet. */
export function remainingSeconds(run: Timed): number | null {
  const first = run.sparkline.step[0];
  if (run.state !== "running" || run.max_steps <= run.step || first === undefined) return null;
  const done = run.step - first;
  const took = run.last_event_at - run.started_at;
  return done >= 5 && took > 0 ? (took / done) * (run.max_steps - run.step) : null;
}

interface SeriesEnd {
  metric: string;
  rank?: number | null;
  last: WireNumber;
  last_step?: number | null;
}

export interface Reading {
  value: number;
  step: number | null;
  rank: number | null;
  ranks: number;
}

/**
 * The last value of a metric over all ranks: a non-finite one if there is any, else the largest, because the slowest
 * rank and the steepest gradient are those that matter.
 */
export function worstLast(series: readonly SeriesEnd[], metric: string): Reading | null {
  const found = series.filter((one) => one.metric === metric);
  let worst: Reading | null = null;
  for (const one of found) {
    const value = fromWire(one.last);
    if (value === null) continue;
    const better =
      worst === null || (!isNonFinite(worst.value) && (isNonFinite(value) || value > worst.value));
    if (better) worst = { value, step: one.last_step ?? null, rank: one.rank ?? null, ranks: found.length };
  }
  return worst;
}

/** "8 ranks on 2 nodes", "1 process on gpu-01". */
export function placeOf(run: { world_size: number; nodes: string[] }): string {
  const ranks = run.world_size === 1 ? "1 rank" : `${run.world_size} ranks`;
  const [only] = run.nodes;
  if (run.nodes.length === 0) return ranks;
  return run.nodes.length === 1 ? `${ranks} on ${only}` : `${ranks} on ${run.nodes.length} nodes`;
}

/** Which loss is watched: the one that the training uses, or the one that the model returned by itself. */
export function lossSource(source: string): string {
  if (source === "loss function") return "as compute_loss returned it";
  return source === "model output" ? "as the model returned it" : source;
}

/** "step 180", "steps 180–182" or "" for a stretch of steps. */
export function stepsText(first: number | null, last: number | null): string {
  if (first === null && last === null) return "";
  if (first === null || last === null || first === last) return `step ${first ?? last}`;
  return `steps ${first}–${last}`;
}

/** How a run came to a bad end, in one sentence (the checkpoint to resume from is shown apart); empty for a good one. */
export function endSentence(run: {
  state: State;
  sentence: string;
  end?: { sentence: string; resume_from: string } | null;
}): string {
  if (run.state === "running" || run.state === "finished") return "";
  const sentence = run.end?.sentence || run.sentence;
  const path = run.end?.resume_from;
  return path ? sentence.replace(`Resume from ${path}.`, "").trim() : sentence;
}
