import { Button } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useSearchParams } from "wouter";
import { retryNow, useLive } from "../api/live";
import { useRuns } from "../api/runs";
import { EmptyRuns } from "../components/EmptyRuns";
import { ErrorPane } from "../components/ErrorPane";
import { RunFilters } from "../components/RunFilters";
import { RunTable, RunTableSkeleton } from "../components/RunTable";
import { countStates, matchText, type RunFilter, readFilter, writeFilter } from "../lib/filter";
import { formatCount } from "../lib/numbers";
import classes from "./pages.module.css";

const PAGE = 100;

export function RunsPage() {
  const [params, setParams] = useSearchParams();
  const filter = readFilter(params);
  const [limit, setLimit] = useState(PAGE);
  const { data, isPending, error, isFetching } = useRuns(filter.project, limit);
  useLive(null);
  const running = data?.runs.filter((run) => run.state === "running").length ?? 0;
  useDocumentTitle(running > 0 ? `Runs · ${running} running · TrainWatch` : "Runs · TrainWatch");

  if (error && !data)
    return (
      <ErrorPane title="The list of runs could not be loaded" onRetry={retryNow}>
        {error.message}
      </ErrorPane>
    );
  if (data && data.total === 0 && filter.project === null) return <EmptyRuns />;

  const matching = matchText(data?.runs ?? [], filter.text);
  const shown = matching.filter((run) => filter.state === null || run.state === filter.state);
  const setFilter = (next: RunFilter) => setParams(writeFilter(next), { replace: true });
  return (
    <>
      <h1 className={classes.title}>Runs</h1>
      <RunFilters
        filter={filter}
        counts={countStates(matching)}
        projects={data?.projects ?? []}
        onChange={setFilter}
      />
      {isPending ? <RunTableSkeleton /> : <RunTable runs={shown} />}
      {data && shown.length === 0 && (
        <p className={classes.nothing}>
          No run matches.{" "}
          <button type="button" className={classes.link} onClick={() => setParams("", { replace: true })}>
            Show all runs
          </button>
        </p>
      )}
      {data && data.runs.length < data.total && (
        <p className={classes.more}>
          The newest {formatCount(data.runs.length)} of {formatCount(data.total)} runs.
          <Button
            variant="default"
            size="compact-sm"
            loading={isFetching}
            onClick={() => setLimit(limit + PAGE)}
          >
            Load more
          </Button>
        </p>
      )}
    </>
  );
}
