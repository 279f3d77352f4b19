import type { Signal } from "../api/types";
import { DataTable } from "./DataTable";
import classes from "./DataTable.module.css";

const COLUMNS = [{ title: "Signal" }, { title: "Read from" }];

/** What is read where, and what cannot be read in this setup: better no number than a wrong one. */
export function Signals({ signals, several }: { signals: readonly Signal[]; several: boolean }) {
  if (signals.length === 0) return null;
  return (
    <>
      <h3 className={classes.heading}>What is measured</h3>
      <DataTable columns={COLUMNS} id="signals">
        {signals.map((one) => (
          <tr
            key={`${one.signal}/${one.source}/${one.missing}`}
            data-testid="signal-row"
            data-signal={one.signal}
          >
            <td>{one.signal}</td>
            <td className={classes.wide}>
              {one.missing ? <span className={classes.missing}>{one.missing}</span> : one.source}
              {several && one.ranks && <span className="muted"> (rank {one.ranks})</span>}
            </td>
          </tr>
        ))}
      </DataTable>
    </>
  );
}
