import type { ReactNode } from "react";
import { Link } from "wouter";
import type { RunDetail } from "../api/types";
import { formatCount, formatPercent } from "../lib/numbers";
import { lossSource, placeOf, progress, remainingSeconds } from "../lib/run";
import { formatAge, formatDuration, formatMoment, formatRough } from "../lib/time";
import { Bar } from "./Bar";
import { CopyIcon } from "./CopyText";
import { DeleteRun } from "./DeleteRun";
import { RunActions } from "./RunActions";
import classes from "./RunHeader.module.css";
import { StateMark } from "./StateMark";
import { useNow } from "./useNow";

export function RunHeader({ run }: { run: RunDetail }) {
  const now = useNow();
  const share = progress(run);
  const left = remainingSeconds(run);
  const live = run.state === "running" || run.state === "late";
  const until = run.ended_at ?? (live ? now : run.last_event_at);
  return (
    <header className={classes.header}>
      <nav className={classes.crumbs} aria-label="Breadcrumb">
        <Link href="/">Runs</Link>
        <span aria-hidden="true">/</span>
        <Link href={`/?project=${encodeURIComponent(run.project)}`}>{run.project}</Link>
      </nav>
      <div className={classes.line}>
        <h1 className={classes.name} data-testid="run-name">
          {run.name || run.id}
        </h1>
        <StateMark state={run.state} />
        <span className={classes.actions}>
          {live ? <RunActions run={run} /> : <DeleteRun id={run.id} name={run.name || run.id} />}
        </span>
      </div>
      <div className={classes.progress}>
        <span data-testid="run-step">
          Step <b>{formatCount(run.step)}</b>
          {run.max_steps > 0 && <span className="muted"> / {formatCount(run.max_steps)}</span>}
        </span>
        {share !== null && (
          <>
            <span className={classes.bar}>
              <Bar share={share} label="Progress" tone={live ? "accent" : "quiet"} />
            </span>
            <span className="muted">{formatPercent(share)}</span>
          </>
        )}
        {left !== null && <span className="muted">about {formatRough(left)} left</span>}
      </div>
      <dl className={classes.facts}>
        <Fact name="Started">{formatMoment(run.started_at, now)}</Fact>
        <Fact name={live ? "Running for" : "Took"}>
          {formatDuration(Math.max(1, until - run.started_at))}
        </Fact>
        <Fact name="Last heard">
          <span title={formatMoment(run.last_event_at, now)}>{formatAge(run.last_event_at, now)}</span>
        </Fact>
        <Fact name="Where">{placeOf(run)}</Fact>
        <Fact name="On NaN">{run.policy}</Fact>
        {run.loss_source && (
          <Fact name="Loss">
            <span data-testid="loss-source">{lossSource(run.loss_source)}</span>
          </Fact>
        )}
        <Fact name="Id">
          <span className="mono">{run.id}</span> <CopyIcon text={run.id} what="the run's id" />
        </Fact>
      </dl>
    </header>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className={classes.fact}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
