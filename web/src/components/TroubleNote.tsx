import type { Trouble } from "../api/types";
import { formatCount } from "../lib/numbers";
import { IconInfo } from "./icons";
import classes from "./TroubleNote.module.css";

/** What TrainWatch itself got wrong or could not keep. Never hidden, and never louder than the run. */
export function TroubleNote({ trouble }: { trouble: Trouble }) {
  const parts = [...counts(trouble.errors, "error swallowed in", "errors swallowed in")];
  for (const [reason, number] of Object.entries(trouble.lost)) {
    if (number > 0)
      parts.push(`${formatCount(number)} ${number === 1 ? "event" : "events"} lost (${reason})`);
  }
  if (parts.length === 0) return null;
  return (
    <p className={classes.note} data-testid="trouble">
      <IconInfo size={14} />
      <span>
        TrainWatch itself had trouble; the training was not affected: {parts.join("; ")}.
        {trouble.message && <span className="mono"> {trouble.message}</span>}
      </span>
    </p>
  );
}

function counts(errors: Record<string, number>, one: string, many: string): string[] {
  return Object.entries(errors)
    .filter(([, number]) => number > 0)
    .map(([place, number]) => `${formatCount(number)} ${number === 1 ? one : many} ${place}`);
}
