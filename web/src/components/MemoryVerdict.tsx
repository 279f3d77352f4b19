import type { Alert } from "../api/types";
import { IconInfo } from "./icons";
import classes from "./MemoryVerdict.module.css";

export const MEMORY_VERDICT = "memory_verdict";

/** What the run's memory does, in words, one for each device; it stands above the chart that shows it. */
export function MemoryVerdict({ alerts }: { alerts: readonly Alert[] }) {
  const verdicts = alerts.filter((alert) => alert.rule === MEMORY_VERDICT && alert.state === "firing");
  if (verdicts.length === 0) return null;
  const sorted = [...verdicts].sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0) || a.id - b.id);
  return (
    <section aria-label="What the memory does" className={classes.box} data-testid="memory-verdict">
      {sorted.map((verdict) => (
        <p key={verdict.id} className={classes.verdict}>
          <span className={classes.icon}>
            <IconInfo />
          </span>
          <span className={classes.text}>{verdict.sentence}</span>
        </p>
      ))}
    </section>
  );
}
