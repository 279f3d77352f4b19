/** Geometry of a sparkline: values in, SVG path data out. */

export interface SparkMark {
  x: number;
  /** "low" for -Infinity; NaN and +Infinity are marked at the top, where they cannot be overlooked. */
  edge: "top" | "bottom";
}

export interface Spark {
  /** Path data of the finite stretches; a non-finite value interrupts the line. */
  line: string;
  marks: SparkMark[];
  /** The last point, if it is finite. */
  end: { x: number; y: number } | null;
}

const INSET = 2.5;

/**
 * @param steps  x values, rising; equal in number to `values`
 * @param values y values; NaN and ±Infinity become marks
 */
export function sparkline(steps: number[], values: number[], width: number, height: number): Spark {
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const first = steps[0] ?? 0;
  const span = (steps.at(-1) ?? first) - first;
  const x = (step: number) =>
    round(span > 0 ? INSET + ((step - first) / span) * (width - 2 * INSET) : width / 2);
  const y = (value: number) =>
    round(high > low ? INSET + ((high - value) / (high - low)) * (height - 2 * INSET) : height / 2);

  const parts: string[] = [];
  const marks: SparkMark[] = [];
  let drawing = false;
  values.forEach((value, index) => {
    const at = x(steps[index] ?? first);
    if (Number.isFinite(value)) {
      const before = values[index - 1];
      const after = values[index + 1];
      const alone = !drawing && (after === undefined || !Number.isFinite(after)) && before !== undefined;
      parts.push(`${drawing ? "L" : "M"}${at} ${y(value)}${alone ? "h0" : ""}`);
      drawing = true;
    } else {
      marks.push({ x: at, edge: value === Number.NEGATIVE_INFINITY ? "bottom" : "top" });
      drawing = false;
    }
  });
  const last = values.at(-1);
  const end = last !== undefined && Number.isFinite(last) ? { x: x(steps.at(-1) ?? 0), y: y(last) } : null;
  return { line: parts.join(""), marks, end };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
