import type { Autopsy, NonFiniteStep } from "../api/types";
import { autopsyOf } from "../lib/autopsy";
import { formatCount } from "../lib/numbers";
import { formatMoment } from "../lib/time";
import { DataTable } from "./DataTable";
import classes from "./DataTable.module.css";
import { Value } from "./Value";

const COLUMNS = [
  { title: "Step", numeric: true },
  { title: "Rank", numeric: true },
  { title: "Value" },
  { title: "Seen in" },
  { title: "What was done" },
  { title: "Parameters with a non-finite gradient" },
  { title: "When" },
];
const DONE: Record<string, string> = {
  recorded: "recorded only",
  skipped: "step skipped, weights untouched",
  scaler: "skipped by the loss scaler",
  halt: "halted, weights untouched",
};

interface Props {
  steps: readonly NonFiniteStep[];
  count: number;
  autopsies: readonly Autopsy[];
  onAutopsy: (id: number) => void;
}

export function NonFiniteTable({ steps, count, autopsies, onAutopsy }: Props) {
  if (steps.length === 0) return <p className={classes.none}>Every step so far was finite.</p>;
  return (
    <>
      <DataTable columns={autopsies.length > 0 ? [...COLUMNS, { title: "Why" }] : COLUMNS} id="nonfinite">
        {steps.map((one) => (
          <tr
            key={`${one.step}/${one.rank}/${one.time}`}
            className={one.replaced ? classes.replaced : undefined}
            data-testid="nonfinite-row"
            data-step={one.step}
          >
            <td className="numeric">{formatCount(one.step)}</td>
            <td className="numeric">{one.rank}</td>
            <td>
              <Value of={one.value} />
            </td>
            <td>
              {one.where}
              {!one.local && <span className="muted"> (of another rank)</span>}
            </td>
            <td>
              {DONE[one.action] ?? one.action}
              {one.replaced && <span className="muted"> (the step was done again since)</span>}
            </td>
            <td className={classes.parameters}>
              <Parameters step={one} />
            </td>
            <td style={{ whiteSpace: "nowrap" }}>{formatMoment(one.time, Date.now() / 1000)}</td>
            {autopsies.length > 0 && (
              <td>
                <AutopsyLink autopsy={autopsyOf(autopsies, one)} onAutopsy={onAutopsy} />
              </td>
            )}
          </tr>
        ))}
      </DataTable>
      {count > steps.length && (
        <p className={classes.caption}>
          {formatCount(count)} in all; the first and the last {formatCount(steps.length / 2)} are shown.
        </p>
      )}
    </>
  );
}

function AutopsyLink({ autopsy, onAutopsy }: { autopsy: Autopsy | null; onAutopsy: (id: number) => void }) {
  if (autopsy === null) return <span className="muted">–</span>;
  return (
    <button type="button" className={classes.link} onClick={() => onAutopsy(autopsy.id)}>
      Autopsy
    </button>
  );
}

function Parameters({ step }: { step: NonFiniteStep }) {
  if (step.parameter_count === 0) return <span className="muted">–</span>;
  const rest = step.parameter_count - step.parameters.length;
  return (
    <>
      <span className="mono">{step.parameters.slice(0, 3).join(", ")}</span>
      {step.parameter_count > 3 && (
        <span className="muted" title={step.parameters.join("\n")}>
          {" "}
          and {formatCount(rest + Math.max(0, step.parameters.length - 3))} more
        </span>
      )}
    </>
  );
}
