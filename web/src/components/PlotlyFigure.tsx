import type { PlotElement } from "plotly.js-cartesian-dist-min";
import { useEffect, useRef } from "react";
import { type Figure, metaOf, readZoom, scaleOf, withView, type YZoom } from "../lib/figure";
import { inTurn, plotly } from "../lib/plotly";
import type { Axis, Range } from "../lib/view";
import { FONT } from "../theme";

interface Props {
  figure: Figure;
  axis: Axis;
  range: Range | null;
  height: number;
  label: string;
  /** Somebody chose a stretch of the x axis, or (null) everything. */
  onRange: (range: Range | null) => void;
  /** It is drawn, or cannot be, and why. */
  onDrawn: (problem: string | null) => void;
}

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, showAxisDragHandles: false };

/** Draws the figure that the server made, and redraws it in place when another one comes. */
export function PlotlyFigure({ figure, axis, range, height, label, onRange, onDrawn }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const yZoom = useRef<YZoom | null>(null);
  const wasZoomed = useRef(false);
  const latest = useRef({ figure, axis, range, onRange, onDrawn });
  latest.current = { figure, axis, range, onRange, onDrawn };
  const draw = useRef<() => void>(() => {});

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let gone = false;
    let listening = false;
    let waiting = false;

    // However often it is asked for while it waits, it is drawn once, as it is then.
    draw.current = () => {
      if (waiting) return;
      waiting = true;
      plotly()
        .then((library) =>
          inTurn(async () => {
            waiting = false;
            if (gone) return;
            const { figure, axis, range } = latest.current;
            const { data, layout } = withView(figure, axis, range, yZoom.current, FONT);
            const plot = await library.react(element, data, layout, CONFIG);
            if (gone) return;
            if (!listening) {
              listening = true;
              listen(plot);
            }
            latest.current.onDrawn(null);
          }),
        )
        .catch((cause: unknown) => {
          waiting = false;
          // After an update of the server the page's old parts are gone.
          if (!gone) latest.current.onDrawn(cause instanceof Error ? cause.message : String(cause));
        });
    };

    function listen(plot: PlotElement) {
      plot.on("plotly_relayout", (event) => {
        const { figure, onRange } = latest.current;
        const zoom = readZoom(event ?? {}, metaOf(figure).origin);
        if (zoom.y === "reset") yZoom.current = null;
        else if (zoom.y) yZoom.current = { ...zoom.y, scale: scaleOf(figure) };
        if (zoom.x) onRange(zoom.x === "reset" ? null : zoom.x);
      });
      plot.on("plotly_doubleclick", () => {
        yZoom.current = null;
        latest.current.onRange(null);
        draw.current();
      });
    }

    const resize = new ResizeObserver(() => {
      if (listening) void plotly().then((library) => (gone ? undefined : library.Plots.resize(element)));
    });
    resize.observe(element);
    return () => {
      gone = true;
      resize.disconnect();
      void plotly().then(
        (library) => library.purge(element),
        () => undefined,
      );
    };
  }, []);

  // biome-ignore lint/correctness/useExhaustiveDependencies: these are what a drawing depends on
  useEffect(() => {
    // Back to everything: that is meant for both axes.
    if (wasZoomed.current && range === null) yZoom.current = null;
    wasZoomed.current = range !== null;
    draw.current();
  }, [figure, axis, range?.from, range?.to]);

  return <div ref={box} role="img" aria-label={label} style={{ height, width: "100%" }} />;
}
