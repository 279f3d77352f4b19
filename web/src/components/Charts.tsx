import { SegmentedControl } from "@mantine/core";
import { useState } from "react";
import type { Alert, ChartInfo } from "../api/types";
import { type Axis, type Range, type View, withAxis } from "../lib/view";
import { ChartPanel } from "./ChartPanel";
import classes from "./Charts.module.css";
import { IconChevron, IconReset } from "./icons";
import { LayersPanel } from "./LayersPanel";
import { MemoryVerdict } from "./MemoryVerdict";

/** The order on the page, and how much of a row each takes. */
const MAIN = {
  loss: "half",
  gradients: "half",
  memory: "full",
  learning_rate: "third",
  batch: "third",
  speed: "third",
  time: "third",
  padding: "third",
  throughput: "third",
  mfu: "third",
  fragmentation: "third",
} as const;
type Main = keyof typeof MAIN;
/** Above the layers, whose norms explain the gradients'. */
const FIRST: readonly string[] = ["loss", "gradients"];
const isLayers = (id: string) => id === "layers" || id.startsWith("layers/");
const isMain = (id: string): id is Main => id in MAIN;

interface Props {
  run: string;
  charts: ChartInfo[];
  alerts: readonly Alert[];
  ranks: readonly number[];
  view: View;
  onView: (view: View) => void;
}

export function Charts({ run, charts, alerts, ranks, view, onView }: Props) {
  const main = Object.keys(MAIN).flatMap((id) => charts.find((chart) => chart.id === id) ?? []);
  const layers = charts.filter((chart) => isLayers(chart.id));
  const more = charts.filter((chart) => !isMain(chart.id) && !isLayers(chart.id));
  const [open, setOpen] = useState(false);
  const onRange = (range: Range | null) => onView({ ...view, range });
  const panel = (chart: ChartInfo) => (
    <ChartPanel
      key={chart.id}
      run={run}
      chart={chart}
      view={view}
      size={isMain(chart.id) ? MAIN[chart.id] : "third"}
      onRange={onRange}
    />
  );
  return (
    <>
      <div className={classes.tools}>
        <SegmentedControl
          size="xs"
          aria-label="What the x axis shows"
          data-testid="axis"
          value={view.axis}
          onChange={(axis) => onView(withAxis(view, axis as Axis))}
          data={[
            { value: "step", label: "Step" },
            { value: "time", label: "Time" },
          ]}
        />
        {view.range ? (
          <button
            type="button"
            className={classes.reset}
            data-testid="reset-zoom"
            onClick={() => onRange(null)}
          >
            <IconReset size={14} /> Reset zoom
          </button>
        ) : (
          <span className={classes.hint}>Drag to zoom all charts, double-click to reset</span>
        )}
      </div>
      {charts.length === 0 && (
        <p className={classes.none}>No readings yet. They appear with the first step.</p>
      )}
      <div className={classes.grid}>
        {main.filter((chart) => FIRST.includes(chart.id)).map(panel)}
        {layers.length > 0 && (
          <LayersPanel run={run} charts={layers} ranks={ranks} view={view} onRange={onRange} />
        )}
        <MemoryVerdict alerts={alerts} />
        {main.filter((chart) => !FIRST.includes(chart.id)).map(panel)}
      </div>
      {more.length > 0 && (
        <>
          <button
            type="button"
            className={classes.more}
            aria-expanded={open}
            data-testid="more-metrics"
            onClick={() => setOpen(!open)}
          >
            <IconChevron size={14} /> More metrics <span className="muted">{more.length}</span>
          </button>
          {open && <div className={classes.grid}>{more.map(panel)}</div>}
        </>
      )}
    </>
  );
}
