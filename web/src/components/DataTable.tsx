import type { ReactNode } from "react";
import classes from "./DataTable.module.css";

export interface Column {
  title: string;
  numeric?: boolean;
}

/** A plain table in a frame that scrolls sideways when it must. */
export function DataTable({ columns, children, id }: { columns: Column[]; children: ReactNode; id: string }) {
  return (
    <div className={classes.frame}>
      <table className={classes.table} data-testid={id}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} className={column.numeric ? "numeric" : undefined} scope="col">
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
