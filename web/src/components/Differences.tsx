import type { Difference } from "../api/types";
import { DataTable } from "./DataTable";
import classes from "./DataTable.module.css";

const COLUMNS = [{ title: "What" }, { title: "Ranks and their values" }];

/** In what the ranks of one training differ and should not. */
export function Differences({ differences }: { differences: readonly Difference[] }) {
  if (differences.length === 0) return null;
  return (
    <>
      <h3 className={classes.heading}>Differences between ranks</h3>
      <DataTable columns={COLUMNS} id="differences">
        {differences.map((one) => (
          <tr
            key={one.key}
            data-testid="difference-row"
            data-key={one.key}
            data-severity={one.severity}
            className={one.severity === "info" ? undefined : classes.warning}
          >
            <td className={classes.key}>{one.key}</td>
            <td className={classes.wide}>
              {one.holders.map((holder) => (
                <div key={holder.ranks} className={classes.holder}>
                  <span className="muted">rank {holder.ranks}</span>
                  <span className={holder.value === null ? "muted" : "mono"}>
                    {holder.value ?? "not set"}
                  </span>
                </div>
              ))}
              {one.more > 0 && <span className="muted">and {one.more} more values</span>}
            </td>
          </tr>
        ))}
      </DataTable>
    </>
  );
}
