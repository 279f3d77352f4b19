import { useMemo } from "react";
import { fromWire, type WireNumber } from "../lib/numbers";
import { sparkline } from "../lib/sparkline";
import classes from "./Sparkline.module.css";

interface Props {
  step: number[];
  value: WireNumber[];
  width?: number;
  height?: number;
}

/** The loss so far, as a small line; non-finite steps are red marks at its edge. */
export function Sparkline({ step, value, width = 104, height = 28 }: Props) {
  const drawn = useMemo(
    () =>
      sparkline(
        step,
        value.map((one) => fromWire(one) ?? Number.NaN),
        width,
        height,
      ),
    [step, value, width, height],
  );
  if (value.length === 0) return <span style={{ width, height }} className={classes.empty} />;
  const bad = drawn.marks.length;
  const label = `Loss over ${value.length} points${bad ? `, ${bad} of them not finite` : ""}`;
  return (
    <svg width={width} height={height} className={classes.spark} role="img" aria-label={label}>
      {drawn.marks.map((mark) => (
        <line key={mark.x} className={classes.gap} x1={mark.x} x2={mark.x} y1={2} y2={height - 2} />
      ))}
      <path className={classes.line} d={drawn.line} />
      {drawn.marks.map((mark) => (
        <circle
          key={mark.x}
          className={classes.mark}
          cx={mark.x}
          cy={mark.edge === "top" ? 3 : height - 3}
          r={2.4}
        />
      ))}
      {drawn.end && <circle className={classes.end} cx={drawn.end.x} cy={drawn.end.y} r={1.9} />}
    </svg>
  );
}
