import { Link } from "wouter";
import type { RunSummary } from "../api/types";
import { formatCount } from "../lib/numbers";
import { placeOf, progress, remainingSeconds } from "../lib/run";
import { formatAge, formatDuration, formatMoment, formatRough } from "../lib/time";
import { AlertChips } from "./AlertChips";
import { Bar } from "./Bar";
import { HeadroomBar } from "./HeadroomBar";
import classes from "./RunTable.module.css";
import { Sparkline } from "./Sparkline";
import { StateMark } from "./StateMark";
import { Value } from "./Value";

export function RunRow({ run, now }: { run: RunSummary; now: number }) {
  const live = run.state === "running" || run.state === "late";
  return (
    <tr className={classes.row} data-testid="run-row" data-run={run.id} data-state={run.state}>
      <td className={classes.state}>
        <StateMark state={run.state} bare />
      </td>
      <td className={classes.run}>
        <Link href={`/runs/${encodeURIComponent(run.id)}`} className={classes.name} title={run.name}>
          {run.name || run.id}
        </Link>
        <div className={classes.meta}>
          {run.project} · {placeOf(run)} · {formatMoment(run.started_at, now)}
        </div>
        {run.sentence && (
          <div className={classes.sentence} data-testid="run-sentence" title={run.sentence}>
            {run.sentence}
          </div>
        )}
      </td>
      <td className={classes.step}>
        <StepCell run={run} />
      </td>
      <td className={classes.loss}>
        <div className={classes.spark}>
          <Sparkline step={run.sparkline.step} value={run.sparkline.value} />
          <span className={classes.value} data-testid="run-loss">
            <Value of={run.last_loss} />
          </span>
        </div>
      </td>
      <td className={classes.alerts}>
        <AlertChips counts={run.alerts} />
      </td>
      <td className={classes.memory}>
        <HeadroomBar headroom={run.headroom} dim={!live} />
      </td>
      <td className={`numeric ${classes.heard}`} title={formatMoment(run.last_event_at, now)}>
        {formatAge(run.last_event_at, now)}
        <div className={classes.meta}>{formatDuration(Math.max(1, run.last_event_at - run.started_at))}</div>
      </td>
    </tr>
  );
}

function StepCell({ run }: { run: RunSummary }) {
  const live = run.state === "running" || run.state === "late";
  const share = progress(run);
  const left = remainingSeconds(run);
  return (
    <>
      <div className={classes.steps}>
        {formatCount(run.step)}
        {run.max_steps > 0 && <span className="muted"> / {formatCount(run.max_steps)}</span>}
      </div>
      {share !== null && <Bar share={share} label="Progress" tone={live ? "accent" : "quiet"} />}
      {left !== null && <div className={classes.meta}>about {formatRough(left)} left</div>}
    </>
  );
}
