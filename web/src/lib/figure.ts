/** From the figure that the server drew to the one that Plotly is given, and from Plotly's events back to a range. */
import type { Axis, Range } from "./view";

export interface Figure {
  data: Record<string, unknown>[];
  layout: Record<string, unknown>;
}

/** A y range that somebody chose by dragging; worth nothing on an axis of another kind or unit. */
export interface YZoom {
  low: number;
  high: number;
  scale: string;
}

interface Meta {
  axis: Axis;
  /** Unix time at x = 0 on the time axis, 0 on the step axis. */
  origin: number;
  /** Pixels that suit what is drawn; null where the page decides. */
  height: number | null;
}

export function metaOf(figure: Figure): Meta {
  const meta = record(figure.layout.meta);
  return {
    axis: meta.axis === "time" ? "time" : "step",
    origin: finite(meta.origin) ?? 0,
    height: finite(meta.height),
  };
}

/** Names the y axis's kind and unit. */
export function scaleOf(figure: Figure): string {
  const meta = record(figure.layout.meta);
  return `${String(record(figure.layout.yaxis).type ?? "linear")}/${String(meta.divisor ?? 1)}`;
}

/**
 * Lays the page's view over a figure: what is zoomed into, even while the finer points are still on their way, and
 * the page's font.
 */
export function withView(
  figure: Figure,
  axis: Axis,
  range: Range | null,
  y: YZoom | null,
  font: string,
): Figure {
  const { axis: drawn, origin } = metaOf(figure);
  const layout = withFont(figure.layout, font) as Record<string, unknown>;
  const x: Record<string, unknown> = { ...record(layout.xaxis) };
  const yaxis: Record<string, unknown> = { ...record(layout.yaxis) };
  if (range && drawn === axis) {
    delete x.autorangeoptions;
    Object.assign(x, { autorange: false, range: [range.from - origin, range.to - origin] });
  }
  if (y && y.scale === scaleOf(figure)) Object.assign(yaxis, { autorange: false, range: [y.low, y.high] });
  // Each drawing has its own revision: this page, not Plotly's memory, decides what is shown. The layout's own revision
  // stays, so that traces hidden through the legend stay hidden.
  const revision = `${drawn}:${range?.from ?? ""}:${range?.to ?? ""}:${y?.low ?? ""}:${y?.high ?? ""}`;
  return {
    data: figure.data,
    layout: {
      ...layout,
      xaxis: { ...x, uirevision: revision },
      yaxis: { ...yaxis, uirevision: revision },
    },
  };
}

export interface Zoom {
  x: Range | "reset" | null;
  y: { low: number; high: number } | "reset" | null;
}

/** What a `plotly_relayout` event says about the axes; null for an axis that it says nothing about. */
export function readZoom(event: Record<string, unknown>, origin: number): Zoom {
  const x = ends(event, "xaxis");
  const y = ends(event, "yaxis");
  return {
    x: x && x !== "reset" ? { from: x[0] + origin, to: x[1] + origin } : x,
    y: y && y !== "reset" ? { low: y[0], high: y[1] } : y,
  };
}

function ends(event: Record<string, unknown>, axis: string): [number, number] | "reset" | null {
  if (event[`${axis}.autorange`] === true) return "reset";
  const whole = event[`${axis}.range`];
  const low = finite(Array.isArray(whole) ? whole[0] : event[`${axis}.range[0]`]);
  const high = finite(Array.isArray(whole) ? whole[1] : event[`${axis}.range[1]`]);
  if (low === null || high === null || low === high) return null;
  return low < high ? [low, high] : [high, low];
}

function withFont(value: unknown, font: string): unknown {
  if (Array.isArray(value)) return value.map((item) => withFont(item, font));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, key === "family" ? font : withFont(item, font)]),
  );
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : {};
}

function finite(value: unknown): number | null {
  const number = typeof value === "string" && value !== "" ? Number(value) : value;
  return typeof number === "number" && Number.isFinite(number) ? number : null;
}
