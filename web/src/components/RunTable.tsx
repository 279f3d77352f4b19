import { Skeleton } from "@mantine/core";
import type { RunSummary } from "../api/types";
import { RunRow } from "./RunRow";
import classes from "./RunTable.module.css";
import { useNow } from "./useNow";

export function RunTable({ runs }: { runs: readonly RunSummary[] }) {
  const now = useNow();
  if (runs.length === 0) return null;
  return (
    <div className={classes.frame}>
      <table className={classes.table} data-testid="runs">
        <thead>
          <tr>
            <th>State</th>
            <th>Run</th>
            <th>Step</th>
            <th>Loss</th>
            <th>Alerts</th>
            <th>Memory</th>
            <th className="numeric">Last heard</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <RunRow key={run.id} run={run} now={now} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function RunTableSkeleton() {
  return (
    <div className={classes.frame} aria-busy="true">
      {["a", "b", "c", "d", "e"].map((key) => (
        <div key={key} className={classes.ghost}>
          <Skeleton h={14} w={80} />
          <Skeleton h={14} w="34%" />
          <Skeleton h={14} w="16%" />
          <Skeleton h={14} w="20%" />
        </div>
      ))}
    </div>
  );
}
