import { Collapse } from "@mantine/core";
import { useState } from "react";
import type { RunDetail } from "../api/types";
import { autopsyOfEnd } from "../lib/autopsy";
import { formatCount } from "../lib/numbers";
import { endSentence, STATE_LOOKS } from "../lib/run";
import { formatMoment } from "../lib/time";
import { CopyText } from "./CopyText";
import classes from "./EndBanner.module.css";
import { StateGlyph } from "./StateMark";

/** How a run came to a bad end, in one sentence, and where to go on from. */
export function EndBanner({ run, onAutopsy }: { run: RunDetail; onAutopsy: (id: number) => void }) {
  const [open, setOpen] = useState(false);
  const { end, state } = run;
  const sentence = endSentence(run);
  if (!sentence) return null;
  const autopsy = autopsyOfEnd(run);
  const tone = state === "halted" ? "warning" : state === "lost" || state === "late" ? "quiet" : "critical";
  return (
    <section
      className={classes.banner}
      data-tone={tone}
      data-testid="banner"
      aria-label={STATE_LOOKS[state].label}
    >
      <span className={classes.glyph}>
        <StateGlyph state={state} />
      </span>
      <div className={classes.body}>
        <p className={classes.sentence} data-testid="banner-sentence">
          {sentence}
        </p>
        {end && (
          <p className={classes.meta}>
            {STATE_LOOKS[state].label} at step {formatCount(end.step)}
            {run.world_size > 1 && <> on rank {end.rank}</>}, {formatMoment(end.time, Date.now() / 1000)}
          </p>
        )}
        {end?.resume_from && (
          <p className={classes.resume} data-testid="resume-from">
            Resume from <CopyText text={end.resume_from} what="the checkpoint's path" />
          </p>
        )}
        {autopsy && (
          <p className={classes.why} data-testid="banner-autopsy">
            {autopsy.sentence}{" "}
            <button type="button" className={classes.link} onClick={() => onAutopsy(autopsy.id)}>
              See the autopsy of step {formatCount(autopsy.step)}
            </button>
          </p>
        )}
        {end?.traceback && (
          <>
            <button
              type="button"
              className={classes.toggle}
              aria-expanded={open}
              onClick={() => setOpen(!open)}
            >
              {open ? "Hide the traceback" : "Show the traceback"}
            </button>
            <Collapse expanded={open}>
              <pre className={classes.traceback}>{end.traceback}</pre>
            </Collapse>
          </>
        )}
      </div>
    </section>
  );
}

/** The path has a line of its own, with a button to copy it. */
