import type { Plotly } from "plotly.js-cartesian-dist-min";
import { gate } from "./pace";

let library: Promise<Plotly> | undefined;

/** Plotly is large: it is a chunk of its own, and is run only when there is a chart to draw. */
export function plotly(): Promise<Plotly> {
  library ??= import("plotly.js-cartesian-dist-min").then(
    (module) => module.default,
    (cause: unknown) => {
      library = undefined; // the next chart tries again
      throw cause;
    },
  );
  return library;
}

/**
 * One drawing at a time, and a breath for the browser after each: the first chart is seen before the last one is
 * drawn, and clicks are answered in between.
 */
export const inTurn = gate(1, () => new Promise((resolve) => setTimeout(resolve)));
