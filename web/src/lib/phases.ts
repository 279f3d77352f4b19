/** Phases of all ranks in one table. */
import type { PhaseTotal } from "../api/types";
import { fromWire } from "./numbers";

const ORDER = ["load", "train", "eval", "save", "idle"];

export interface Peak {
  rank: number;
  device: string;
  bytes: number;
}

export interface PhaseRow {
  phase: string;
  /** Of the rank that entered it most often. */
  entered: number;
  /** Of the rank that it took longest. */
  seconds: number;
  /** The highest use of each device, the highest first. */
  peaks: Peak[];
}

export function mergePhases(totals: readonly PhaseTotal[]): PhaseRow[] {
  const rows = new Map<string, PhaseRow>();
  for (const one of totals) {
    const row = rows.get(one.phase) ?? { phase: one.phase, entered: 0, seconds: 0, peaks: [] };
    row.entered = Math.max(row.entered, one.entered);
    row.seconds = Math.max(row.seconds, one.seconds);
    for (const [device, values] of Object.entries(one.peak)) {
      const bytes = fromWire(values["memory/peak"]);
      if (bytes !== null && Number.isFinite(bytes)) row.peaks.push({ rank: one.rank, device, bytes });
    }
    rows.set(one.phase, row);
  }
  const place = (row: PhaseRow) => (ORDER.includes(row.phase) ? ORDER.indexOf(row.phase) : ORDER.length);
  for (const row of rows.values()) row.peaks.sort((a, b) => b.bytes - a.bytes || a.rank - b.rank);
  return [...rows.values()].sort((a, b) => place(a) - place(b) || a.phase.localeCompare(b.phase));
}
