/** What the run page shows, as its address says it: `?x=time&from=…&to=…&tab=ranks`. */

export type Axis = "step" | "time";

export const TABS = ["charts", "ranks", "checkpoints", "nonfinite", "autopsy", "setup", "compare"] as const;
export type Tab = (typeof TABS)[number];

/** A stretch of the x axis: steps, or Unix seconds. */
export interface Range {
  from: number;
  to: number;
}

export interface View {
  axis: Axis;
  range: Range | null;
  tab: Tab;
  /** The id of the autopsy that is shown; null for the newest. */
  autopsy: number | null;
  /** The id of the run that this one is compared with; null for the one that is offered first. */
  other: string | null;
}

export function readView(params: URLSearchParams): View {
  const from = number(params.get("from"));
  const to = number(params.get("to"));
  const tab = TABS.find((name) => name === params.get("tab"));
  return {
    axis: params.get("x") === "time" ? "time" : "step",
    range: from !== null && to !== null && from < to ? { from, to } : null,
    tab: tab ?? "charts",
    autopsy: number(params.get("autopsy")),
    other: params.get("with"),
  };
}

/** Writes a view into an address, leaving out what is the default and leaving alone what belongs to others. */
export function writeView(params: URLSearchParams, view: View): URLSearchParams {
  const next = new URLSearchParams(params);
  set(next, "x", view.axis === "time" ? "time" : null);
  set(next, "from", view.range && compact(view.range.from));
  set(next, "to", view.range && compact(view.range.to));
  set(next, "tab", view.tab === "charts" ? null : view.tab);
  set(next, "autopsy", view.tab === "autopsy" && view.autopsy !== null ? String(view.autopsy) : null);
  set(next, "with", view.tab === "compare" ? view.other : null);
  return next;
}

/** What to take over when the axis changes: a range of steps says nothing about times. */
export function withAxis(view: View, axis: Axis): View {
  return axis === view.axis ? view : { ...view, axis, range: null };
}

function set(params: URLSearchParams, key: string, value: string | null): void {
  if (value === null) params.delete(key);
  else params.set(key, value);
}

function number(text: string | null): number | null {
  if (text === null || text.trim() === "") return null;
  const value = Number(text);
  return Number.isFinite(value) ? value : null;
}

function compact(value: number): string {
  return String(Math.round(value * 1000) / 1000);
}
