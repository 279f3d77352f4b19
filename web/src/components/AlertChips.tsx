import type { AlertCounts } from "../api/types";
import classes from "./AlertChips.module.css";

const ORDER = ["critical", "warning", "info"] as const;

/** How many alerts there are, worst first. */
export function AlertChips({ counts }: { counts: AlertCounts }) {
  const some = ORDER.filter((severity) => counts[severity] > 0);
  if (some.length === 0) return <span className="muted">–</span>;
  return (
    <span className={classes.chips}>
      {some.map((severity) => (
        <span
          key={severity}
          className={classes.chip}
          data-severity={severity}
          title={`${counts[severity]} ${severity}`}
        >
          {counts[severity]}
          <span className="visually-hidden"> {severity}</span>
        </span>
      ))}
    </span>
  );
}
