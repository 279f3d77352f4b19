import { expect, it } from "vitest";
import { mergePhases } from "./phases";

const total = (rank: number, phase: string, entered: number, seconds: number, gib?: number) => ({
  rank,
  phase,
  entered,
  seconds,
  peak: (gib === undefined ? {} : { [`cuda:${rank}`]: { "memory/peak": gib } }) as Record<
    string,
    Record<string, number>
  >,
});

it("merges the ranks: the slowest counts, and every device is named", () => {
  const rows = mergePhases([
    total(0, "save", 1, 3, 24),
    total(0, "train", 3, 80, 21),
    total(1, "train", 3, 90, 22),
    total(0, "odd", 1, 1),
  ]);
  expect(rows.map((row) => row.phase)).toEqual(["train", "save", "odd"]);
  expect(rows[0]).toEqual({
    phase: "train",
    entered: 3,
    seconds: 90,
    peaks: [
      { rank: 1, device: "cuda:1", bytes: 22 },
      { rank: 0, device: "cuda:0", bytes: 21 },
    ],
  });
  expect(rows[2]?.peaks).toEqual([]);
});
