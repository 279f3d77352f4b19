import { Select } from "@mantine/core";
import { useComparison } from "../api/compare";
import { useRuns } from "../api/runs";
import type { CurveDifference, RunDetail, SetupDifference } from "../api/types";
import { candidates } from "../lib/compare";
import { formatBytes, formatCount, formatNumber, fromWire, type WireNumber } from "../lib/numbers";
import { STATE_LOOKS } from "../lib/run";
import { DataTable } from "./DataTable";
import tables from "./DataTable.module.css";
import { ErrorPane } from "./ErrorPane";

const OFFERED = 200;

interface Props {
  run: RunDetail;
  other: string | null;
  onOther: (other: string | null) => void;
}

/** This run beside another one: what they were started with, and where their curves part. */
export function Compare({ run, other, onOther }: Props) {
  const { data: runs } = useRuns(null, OFFERED);
  const offered = candidates(runs?.runs ?? [], run);
  const chosen = other ?? offered[0]?.id ?? null;
  const { data, error, refetch } = useComparison(run.id, chosen);
  if (runs && offered.length === 0 && other === null)
    return <p className={tables.none}>There is no other run on this server to compare this one with.</p>;
  const names = new Map(offered.map((one) => [one.id, one]));
  return (
    <div data-testid="compare">
      <Select
        label="Compare with"
        size="xs"
        maw={460}
        searchable
        allowDeselect={false}
        data={offered.map((one) => ({
          value: one.id,
          label: `${one.name || one.id} · ${STATE_LOOKS[one.state].label.toLowerCase()} · ${one.id}`,
        }))}
        value={chosen !== null && names.has(chosen) ? chosen : null}
        placeholder={chosen ?? undefined}
        onChange={onOther}
        data-testid="compare-with"
      />
      {error && (
        <ErrorPane title="The runs could not be compared" onRetry={() => void refetch()}>
          {error.message}
        </ErrorPane>
      )}
      {data && (
        <>
          <h3 className={tables.heading}>Where the curves part</h3>
          <Curves curves={data.curves} />
          <h3 className={tables.heading}>What they were started with</h3>
          <SetupTable setup={data.setup} />
        </>
      )}
    </div>
  );
}

const CURVE_COLUMNS = [
  { title: "Curve" },
  { title: "They part" },
  { title: "This run", numeric: true },
  { title: "The other", numeric: true },
  { title: "Steps in common", numeric: true },
];

function Curves({ curves }: { curves: readonly CurveDifference[] }) {
  if (curves.length === 0)
    return <p className={tables.none}>The two runs have no curve with at least five steps in common.</p>;
  return (
    <>
      <DataTable columns={CURVE_COLUMNS} id="compared-curves">
        {curves.map((one) => (
          <tr
            key={`${one.metric} ${one.device}`}
            data-metric={one.metric}
            className={one.step === null ? undefined : tables.warning}
          >
            <td>
              {one.title} {one.device && <span className="muted">{one.device}</span>}
            </td>
            <td>
              {one.step === null ? <span className="muted">no</span> : `at step ${formatCount(one.step)}`}
            </td>
            <td className="numeric mono">{written(one.ours, one.unit)}</td>
            <td className="numeric mono">{written(one.theirs, one.unit)}</td>
            <td className="numeric mono">{formatCount(one.common)}</td>
          </tr>
        ))}
      </DataTable>
      <p className={tables.caption}>
        Medians from the step on at which the curves part and stay apart, or over all common steps.
      </p>
    </>
  );
}

function written(value: WireNumber, unit: string): string {
  if (unit === "bytes") return formatBytes(fromWire(value));
  return formatNumber(fromWire(value)) + (unit === "seconds" ? " s" : "");
}

const SETUP_COLUMNS = [{ title: "What" }, { title: "This run" }, { title: "The other" }];

function SetupTable({ setup }: { setup: readonly SetupDifference[] }) {
  if (setup.length === 0) return <p className={tables.none}>They were started with the same.</p>;
  return (
    <DataTable columns={SETUP_COLUMNS} id="compared-setup">
      {setup.map((one) => (
        <tr
          key={one.key}
          data-key={one.key}
          data-severity={one.severity}
          className={one.severity === "info" ? undefined : tables.warning}
        >
          <td className={tables.key}>{one.key}</td>
          {[one.ours, one.theirs].map((value, place) => (
            <td key={place === 0 ? "ours" : "theirs"} className={tables.wide}>
              <span className={value === null ? "muted" : "mono"}>{value ?? "not set"}</span>
            </td>
          ))}
        </tr>
      ))}
    </DataTable>
  );
}
