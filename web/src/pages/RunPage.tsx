import { Skeleton } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { Link, useSearchParams } from "wouter";
import { ApiError } from "../api/client";
import { retryNow, useLive } from "../api/live";
import { useRun } from "../api/run";
import { useSeries } from "../api/series";
import type { RunDetail, SeriesInfo } from "../api/types";
import { AlertList } from "../components/AlertList";
import { AutopsyReport } from "../components/AutopsyReport";
import { Charts } from "../components/Charts";
import { CheckpointsTable } from "../components/CheckpointsTable";
import { Compare } from "../components/Compare";
import { EndBanner } from "../components/EndBanner";
import { ErrorPane } from "../components/ErrorPane";
import { MEMORY_VERDICT } from "../components/MemoryVerdict";
import { NonFiniteTable } from "../components/NonFiniteTable";
import { OutOfMemoryNotes } from "../components/OutOfMemoryNotes";
import { RanksTable } from "../components/RanksTable";
import { RunHeader } from "../components/RunHeader";
import { RunTabs } from "../components/RunTabs";
import { Setup } from "../components/Setup";
import { Tiles } from "../components/Tiles";
import { TroubleNote } from "../components/TroubleNote";
import { endSentence, STATE_LOOKS } from "../lib/run";
import { readView, type View, writeView } from "../lib/view";
import classes from "./pages.module.css";

export function RunPage({ id }: { id: string }) {
  const { data: run, error } = useRun(id);
  const { data: series } = useSeries(id);
  const unknown = error instanceof ApiError && error.status === 404;
  // A run that is not there yet may come: every run's events tell.
  useLive(unknown ? null : id);
  useDocumentTitle(
    run
      ? `${run.name || run.id} · ${STATE_LOOKS[run.state].label.toLowerCase()} · TrainWatch`
      : "Run · TrainWatch",
  );

  if (run) return <Run run={run} series={series ?? []} />;
  if (unknown)
    return (
      <ErrorPane title="There is no such run">
        No run with the id <span className="mono">{id}</span> has reported to this server. If it is starting
        right now, it appears here by itself. <Link href="/">All runs</Link>
      </ErrorPane>
    );
  if (error)
    return (
      <ErrorPane title="The run could not be loaded" onRetry={retryNow}>
        {error.message}
      </ErrorPane>
    );
  return <RunSkeleton />;
}

function Run({ run, series }: { run: RunDetail; series: SeriesInfo[] }) {
  const [params, setParams] = useSearchParams();
  const view = readView(params);
  const setView = (next: View) =>
    setParams((now) => writeView(now, next), { replace: next.tab === view.tab });
  const showAutopsy = (autopsy: number) => setView({ ...view, tab: "autopsy", autopsy });
  return (
    <div className={classes.stack} data-testid="run" data-run={run.id} data-state={run.state}>
      <RunHeader run={run} />
      <div className={classes.evidence}>
        <EndBanner run={run} onAutopsy={showAutopsy} />
        <OutOfMemoryNotes errors={run.out_of_memory} count={run.out_of_memory_count} />
        <AlertList
          run={run.id}
          alerts={run.alerts.filter(
            (alert) => alert.sentence !== endSentence(run) && alert.rule !== MEMORY_VERDICT,
          )}
          autopsies={run.autopsies}
          onAutopsy={showAutopsy}
        />
      </div>
      <Tiles run={run} series={series} />
      <TroubleNote trouble={run.trouble} />
      <RunTabs run={run} tab={view.tab} onTab={(tab) => setView({ ...view, tab })}>
        {view.tab === "charts" && (
          <Charts
            run={run.id}
            charts={run.charts}
            alerts={run.alerts}
            ranks={run.ranks.map((rank) => rank.rank)}
            view={view}
            onView={setView}
          />
        )}
        {view.tab === "ranks" && <RanksTable ranks={run.ranks} hosts={run.hosts} phases={run.phases} />}
        {view.tab === "checkpoints" && <CheckpointsTable checkpoints={run.checkpoints} />}
        {view.tab === "nonfinite" && (
          <NonFiniteTable
            steps={run.nonfinite}
            count={run.nonfinite_count}
            autopsies={run.autopsies}
            onAutopsy={showAutopsy}
          />
        )}
        {view.tab === "autopsy" && (
          <AutopsyReport
            autopsies={run.autopsies}
            count={run.autopsy_count}
            several={run.world_size > 1}
            chosen={view.autopsy}
            onChoose={showAutopsy}
          />
        )}
        {view.tab === "setup" && <Setup run={run} />}
        {view.tab === "compare" && (
          <Compare run={run} other={view.other} onOther={(other) => setView({ ...view, other })} />
        )}
      </RunTabs>
    </div>
  );
}

function RunSkeleton() {
  return (
    <div className={classes.stack} aria-busy="true" data-testid="loading">
      <Skeleton h={14} w={120} />
      <Skeleton h={28} w="40%" />
      <Skeleton h={84} radius={8} />
      <Skeleton h={300} radius={8} />
    </div>
  );
}
