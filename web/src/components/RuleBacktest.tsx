import { Link } from "wouter";
import type { Backtest } from "../api/types";
import { formatCount } from "../lib/numbers";
import classes from "./Rules.module.css";
import { StateGlyph } from "./StateMark";

/** What a rule would have said of past runs. */
export function RuleBacktest({ result }: { result: Backtest }) {
  const { runs, fired, left } = result;
  if (runs.length === 0)
    return <p className={classes.note}>The project has no run yet that the rule could be tried on.</p>;
  return (
    <div className={classes.backtest} data-testid="backtest">
      <p className={classes.note}>
        It would have fired on <b>{formatCount(fired)}</b> of {formatCount(runs.length)} runs
        {result.ended_well > 0 &&
          `, and on ${formatCount(result.fired_on_ended_well)} of the ${formatCount(result.ended_well)} that finished`}
        .{left > 0 && ` ${formatCount(left)} more were left out, to answer in time.`}
      </p>
      <ul className={classes.runs}>
        {runs.map((run) => (
          <li key={run.id} className={classes.run} data-testid="backtest-run" data-fired={run.fired}>
            <StateGlyph state={run.state} />
            <span className={classes.runname}>
              <Link href={`/runs/${encodeURIComponent(run.id)}`}>{run.name || run.id}</Link>
              <span className="muted">
                {" "}
                {formatCount(run.points)} {run.points === 1 ? "point" : "points"}
                {!run.is_whole && ", only its begin"}
              </span>
            </span>
            <span className={classes.said}>
              {run.findings.length === 0 ? (
                <span className="muted">nothing</span>
              ) : (
                run.findings.slice(0, 3).map((finding) => (
                  <span
                    key={`${finding.point}/${finding.rank}/${finding.state}/${finding.sentence}`}
                    className={classes.finding}
                    data-severity={finding.severity}
                    data-state={finding.state}
                  >
                    {finding.state === "resolved" ? "Over" : finding.severity}
                    {finding.step !== null && ` at step ${formatCount(finding.step)}`}: {finding.sentence}
                  </span>
                ))
              )}
              {run.count > 3 && <span className="muted">and {formatCount(run.count - 3)} more</span>}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
