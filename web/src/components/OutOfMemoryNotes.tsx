import { Collapse } from "@mantine/core";
import { useState } from "react";
import type { OutOfMemory } from "../api/types";
import { formatCount } from "../lib/numbers";
import { formatMoment } from "../lib/time";
import { IconAlert } from "./icons";
import classes from "./OutOfMemoryNotes.module.css";

/** What an allocator could not serve, and what it says of itself. */
export function OutOfMemoryNotes({ errors, count }: { errors: readonly OutOfMemory[]; count: number }) {
  const [newest] = errors;
  if (!newest) return null;
  return (
    <section aria-label="Out of memory" className={classes.box} data-testid="out-of-memory">
      {errors.map((one) => (
        <Note key={one.id} error={one} />
      ))}
      {count > errors.length && (
        <p className={classes.rest}>
          {formatCount(count)} in all; the newest {formatCount(errors.length)} are shown.
        </p>
      )}
    </section>
  );
}

function Note({ error }: { error: OutOfMemory }) {
  const [open, setOpen] = useState(false);
  return (
    <div className={classes.note}>
      <span className={classes.icon}>
        <IconAlert />
      </span>
      <div className={classes.text}>
        {error.sentence} <span className="muted">{formatMoment(error.time, Date.now() / 1000)}</span>
        {error.summary && (
          <>
            <button
              type="button"
              className={classes.toggle}
              aria-expanded={open}
              onClick={() => setOpen(!open)}
            >
              {open ? "Hide the allocator's summary" : "Show the allocator's summary"}
            </button>
            <Collapse expanded={open}>
              <pre className={classes.summary}>{error.summary}</pre>
            </Collapse>
          </>
        )}
      </div>
    </div>
  );
}
