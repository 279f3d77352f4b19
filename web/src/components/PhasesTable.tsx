import type { PhaseTotal } from "../api/types";
import { formatBytes, formatCount } from "../lib/numbers";
import { mergePhases, type Peak } from "../lib/phases";
import { formatDuration } from "../lib/time";
import { DataTable } from "./DataTable";
import classes from "./DataTable.module.css";

const COLUMNS = [
  { title: "Phase" },
  { title: "Entered", numeric: true },
  { title: "Took in all", numeric: true },
  { title: "Highest use of memory" },
];
const NAMES: Record<string, string> = {
  load: "loading",
  train: "training",
  eval: "evaluation",
  save: "saving",
  idle: "idle",
};
const FEW = 8;

/** What each phase took, in time and in memory. */
export function PhasesTable({ phases, several }: { phases: readonly PhaseTotal[]; several: boolean }) {
  const rows = mergePhases(phases);
  if (rows.length === 0) return null;
  return (
    <>
      <h3 className={classes.heading}>Phases</h3>
      <DataTable columns={COLUMNS} id="phases">
        {rows.map((row) => (
          <tr key={row.phase} data-testid="phase-row" data-phase={row.phase}>
            <td>{NAMES[row.phase] ?? row.phase}</td>
            <td className="numeric">{formatCount(row.entered)}×</td>
            <td className="numeric">{row.seconds > 0 ? formatDuration(row.seconds) : "–"}</td>
            <td>
              <Peaks peaks={row.peaks} several={several} />
            </td>
          </tr>
        ))}
      </DataTable>
      <p className={classes.caption}>
        {several ? "Of several ranks the slowest counts. " : ""}A phase counts in time and memory once it is
        left again.
      </p>
    </>
  );
}

function Peaks({ peaks, several }: { peaks: readonly Peak[]; several: boolean }) {
  if (peaks.length === 0) return <span className="muted">–</span>;
  return (
    <span className={classes.peaks}>
      {peaks.slice(0, FEW).map((peak) => (
        <span key={`${peak.rank}/${peak.device}`} className={classes.peak}>
          {formatBytes(peak.bytes)}{" "}
          <span className="muted">
            {peak.device}
            {several && `, rank ${peak.rank}`}
          </span>
        </span>
      ))}
      {peaks.length > FEW && <span className="muted">and {formatCount(peaks.length - FEW)} more</span>}
    </span>
  );
}
