import { Tooltip } from "@mantine/core";
import type { ReactNode } from "react";
import type { State } from "../lib/filter";
import { STATE_LOOKS, type StateLook } from "../lib/run";
import classes from "./StateMark.module.css";

const GLYPHS: Record<StateLook["glyph"], ReactNode> = {
  pulse: <circle cx="6" cy="6" r="4" fill="currentColor" />,
  check: <path d="m2 6.4 2.7 2.7L10 3.4" />,
  stop: <rect x="1.6" y="1.6" width="8.8" height="8.8" rx="1.8" fill="currentColor" stroke="none" />,
  cross: <path d="m2.8 2.8 6.4 6.4M9.2 2.8 2.8 9.2" />,
  skull: (
    <>
      <circle cx="6" cy="6" r="5" fill="currentColor" stroke="none" />
      <path d="m4.2 4.2 3.6 3.6M7.8 4.2 4.2 7.8" stroke="var(--tw-surface)" strokeWidth="1.4" />
    </>
  ),
  silence: <circle cx="6" cy="6" r="4.2" strokeDasharray="2.2 2.2" strokeWidth="1.6" strokeLinecap="butt" />,
};

interface Props {
  state: State;
  /** Bare: without the coloured pill around it. */
  bare?: boolean;
}

/** A run's state: told by colour, by shape and by word. */
export function StateMark({ state, bare = false }: Props) {
  const look = STATE_LOOKS[state];
  return (
    <Tooltip label={look.meaning} withArrow multiline maw={280} openDelay={400}>
      <span
        className={bare ? classes.bare : classes.pill}
        style={{ "--mark": look.colour } as React.CSSProperties}
        data-testid="run-state"
        data-state={state}
      >
        <StateGlyph state={state} />
        {look.label}
      </span>
    </Tooltip>
  );
}

export function StateGlyph({ state }: { state: State }) {
  const look = STATE_LOOKS[state];
  return (
    <svg
      className={look.glyph === "pulse" ? classes.pulse : undefined}
      width="12"
      height="12"
      viewBox="0 0 12 12"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.8"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      style={{ color: look.colour, flex: "none", overflow: "visible" }}
    >
      {look.glyph === "pulse" && <circle className={classes.ring} cx="6" cy="6" r="4" strokeWidth="1.2" />}
      {GLYPHS[look.glyph]}
    </svg>
  );
}
