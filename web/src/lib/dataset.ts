/** The distribution of the samples' lengths, out of what a run says of its training set. */

export interface Lengths {
  edges: number[];
  counts: number[];
  /** Where the lengths were found: "input_ids". */
  column: string;
  /** How many samples were read; null when that is not known. */
  read: number | null;
  complete: boolean;
  /** Named lengths: shortest, median … */
  marks: { name: string; value: number }[];
}

const MARKS = {
  min: "shortest",
  mean: "mean",
  p50: "median",
  p90: "90 %",
  p99: "99 %",
  max: "longest",
};

/** Returns null where there is no histogram, or none that makes sense. */
export function lengthsOf(dataset: Record<string, unknown>): Lengths | null {
  const train = record(dataset.train);
  const histogram = record(train.histogram);
  const edges = numbers(histogram.edges);
  const counts = numbers(histogram.counts);
  if (counts.length === 0 || edges.length !== counts.length + 1 || counts.every((count) => count === 0))
    return null;
  const lengths = record(train.lengths);
  return {
    edges,
    counts,
    column: typeof train.column === "string" ? train.column : "",
    read: typeof train.read === "number" ? train.read : null,
    complete: train.complete === true,
    marks: Object.entries(MARKS).flatMap(([key, name]) => {
      const value = lengths[key];
      return typeof value === "number" ? [{ name, value }] : [];
    }),
  };
}

/** What is left of the description beside the histogram, which says the rest. */
export function withoutHistogram(dataset: Record<string, unknown>): Record<string, unknown> {
  const { train } = dataset;
  if (typeof train !== "object" || train === null) return dataset;
  const { histogram: _histogram, lengths: _lengths, ...rest } = record(train);
  return { ...dataset, train: rest };
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : {};
}

function numbers(value: unknown): number[] {
  return Array.isArray(value) && value.every((item) => typeof item === "number" && Number.isFinite(item))
    ? value
    : [];
}
