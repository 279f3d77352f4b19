import type { Checkpoint } from "../api/types";
import { formatCount } from "../lib/numbers";
import { formatMoment } from "../lib/time";
import { CopyText } from "./CopyText";
import { DataTable } from "./DataTable";
import classes from "./DataTable.module.css";

const COLUMNS = [
  { title: "Step", numeric: true },
  { title: "Path on the training machine" },
  { title: "Saved" },
  { title: "Why" },
];
const WHY: Record<string, string> = {
  schedule: "by the Trainer's schedule",
  halt: "before the halt",
  command: "on request",
};

export function CheckpointsTable({ checkpoints }: { checkpoints: readonly Checkpoint[] }) {
  if (checkpoints.length === 0) return <p className={classes.none}>No checkpoint has been saved yet.</p>;
  const newest = [...checkpoints].sort((a, b) => b.time - a.time);
  return (
    <DataTable columns={COLUMNS} id="checkpoints">
      {newest.map((checkpoint) => (
        <tr key={`${checkpoint.step}/${checkpoint.path}/${checkpoint.rank}`} data-testid="checkpoint-row">
          <td className="numeric">{formatCount(checkpoint.step)}</td>
          <td className={classes.path}>
            <CopyText text={checkpoint.path} what="the path" />
          </td>
          <td style={{ whiteSpace: "nowrap" }}>{formatMoment(checkpoint.time, Date.now() / 1000)}</td>
          <td>{WHY[checkpoint.reason] ?? checkpoint.reason}</td>
        </tr>
      ))}
    </DataTable>
  );
}
