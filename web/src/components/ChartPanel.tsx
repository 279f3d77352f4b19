import { Skeleton, useComputedColorScheme } from "@mantine/core";
import { type ReactNode, useCallback, useEffect, useState } from "react";
import { useChart } from "../api/chart";
import type { ChartInfo } from "../api/types";
import { metaOf } from "../lib/figure";
import { plotly } from "../lib/plotly";
import type { Range, View } from "../lib/view";
import classes from "./ChartPanel.module.css";
import { PlotlyFigure } from "./PlotlyFigure";
import { useNearby } from "./useNearby";

interface Props {
  run: string;
  chart: ChartInfo;
  view: View;
  size?: "half" | "third" | "full";
  onRange: (range: Range | null) => void;
  /** Only this rank's readings. */
  rank?: number | null;
  /** Beside the title: what the reader can choose. */
  tools?: ReactNode;
}

/** Units that the ticks of the y axis do not name. */
const UNITS = ["tokens", "samples", "1/s"];

const HEIGHTS = { half: 280, third: 240, full: 340 };

/** One chart with its title. It is fetched when it comes near the window, and again when it is zoomed. */
export function ChartPanel({ run, chart, view, size = "half", onRange, rank = null, tools }: Props) {
  const theme = useComputedColorScheme("light", { getInitialValueInEffect: false });
  const { ref, near, width } = useNearby();
  // Reading Plotly's code takes the browser a while: it does so while the server draws.
  useEffect(() => {
    if (near && width > 0) plotly().catch(() => undefined);
  }, [near, width]);
  const [drawn, setDrawn] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const onDrawn = useCallback((problem: string | null) => {
    setDrawn(problem === null);
    setProblem(problem);
  }, []);
  const { data, error, isPlaceholderData, refetch } = useChart(
    { run, chart: chart.id, axis: view.axis, range: view.range, width, theme, rank },
    near,
  );
  const height = (data && metaOf(data).height) ?? HEIGHTS[size];
  return (
    <section
      ref={ref}
      className={classes.panel}
      data-size={size}
      data-testid="chart"
      data-chart={chart.id}
      data-ready={drawn && data ? true : undefined}
      aria-busy={isPlaceholderData}
    >
      <h3 className={classes.title}>
        {chart.title}
        {UNITS.includes(chart.unit) && chart.unit !== chart.title.toLowerCase() && (
          <span className={classes.unit}>{chart.unit}</span>
        )}
        {tools && <span className={classes.tools}>{tools}</span>}
      </h3>
      <div className={data && !tools ? classes.body : undefined} style={{ height }}>
        {problem !== null ? (
          <p className={classes.error}>
            The chart could not be drawn: {problem}{" "}
            <button type="button" onClick={() => window.location.reload()}>
              Reload the page
            </button>
          </p>
        ) : data ? (
          <PlotlyFigure
            figure={data}
            axis={view.axis}
            range={view.range}
            height={height}
            label={`Chart: ${chart.title}`}
            onRange={onRange}
            onDrawn={onDrawn}
          />
        ) : error ? (
          <p className={classes.error}>
            {error.message}{" "}
            <button type="button" onClick={() => void refetch()}>
              Try again
            </button>
          </p>
        ) : (
          <Skeleton height={height - 12} radius={6} />
        )}
      </div>
    </section>
  );
}
