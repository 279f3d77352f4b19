import type { ReactNode } from "react";
import type { RunDetail, SeriesInfo } from "../api/types";
import { formatBytes, formatCount, formatPercent } from "../lib/numbers";
import { type Reading, worstLast } from "../lib/run";
import { formatDuration } from "../lib/time";
import classes from "./Tiles.module.css";
import { Value } from "./Value";

interface Props {
  run: RunDetail;
  series: readonly SeriesInfo[];
}

/** The last readings, large. */
export function Tiles({ run, series }: Props) {
  const loss = worstLast(series, "train/loss");
  const evaluated = worstLast(series, "eval/loss");
  const gradients = worstLast(series, "train/grad_norm") ?? worstLast(series, "train/grad_norm_local");
  const pace = worstLast(series, "train/step_seconds");
  const { headroom } = run;
  return (
    <dl className={classes.tiles} data-testid="tiles">
      <Tile id="loss" label="Loss" note={at(loss)}>
        <Value of={run.last_loss} />
      </Tile>
      <Tile id="eval-loss" label="Eval loss" note={at(evaluated)}>
        <Value of={run.last_eval_loss} />
      </Tile>
      <Tile id="grad-norm" label="Gradient norm" note={at(gradients)}>
        <Value of={gradients?.value ?? null} />
      </Tile>
      <Tile id="headroom" label="Memory free" note={headroom && place(headroom)}>
        <Value of={headroom && Math.max(0, headroom.bytes)} format={formatBytes} />
      </Tile>
      <Tile
        id="step-time"
        label="Step time"
        note={pace && (pace.ranks > 1 ? `slowest: rank ${pace.rank}` : at(pace))}
      >
        <Value of={pace?.value ?? null} format={formatDuration} />
      </Tile>
      <Tile id="ranks" label="Ranks" note={nodes(run)}>
        {formatCount(run.world_size)}
      </Tile>
    </dl>
  );
}

function Tile({
  id,
  label,
  note,
  children,
}: {
  id: string;
  label: string;
  note: string | null;
  children: ReactNode;
}) {
  return (
    <div className={classes.tile} data-testid={`tile-${id}`}>
      <dt className={classes.label}>{label}</dt>
      <dd className={classes.value}>{children}</dd>
      <dd className={classes.note} title={note ?? undefined}>
        {note || "\u00a0"}
      </dd>
    </div>
  );
}

function at(reading: Reading | null): string | null {
  return reading?.step == null || reading.step < 0 ? null : `at step ${formatCount(reading.step)}`;
}

function place(headroom: NonNullable<RunDetail["headroom"]>): string {
  const share =
    headroom.capacity > 0 ? `${formatPercent(Math.max(0, headroom.bytes) / headroom.capacity)} of ` : "of ";
  const rank = headroom.rank === null ? "" : `, rank ${headroom.rank}`;
  return `${share}${formatBytes(headroom.capacity)} · ${headroom.device}${rank}`;
}

function nodes(run: RunDetail): string {
  return run.nodes.length === 1 ? `on ${run.nodes[0]}` : `on ${run.nodes.length} nodes`;
}
