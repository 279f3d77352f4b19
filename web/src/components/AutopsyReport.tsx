import { NativeSelect } from "@mantine/core";
import type { ReactNode } from "react";
import type { Autopsy, TensorInfo } from "../api/types";
import { badText, isBad, rangeText, shapeText } from "../lib/autopsy";
import { formatCount, formatPercent } from "../lib/numbers";
import { formatDuration, formatMoment } from "../lib/time";
import classes from "./AutopsyReport.module.css";
import { CopyText } from "./CopyText";
import { DataTable } from "./DataTable";
import tables from "./DataTable.module.css";
import { Value } from "./Value";

interface Props {
  autopsies: readonly Autopsy[];
  count: number;
  /** The run has several ranks. */
  several: boolean;
  /** The id of the one to show; the newest without it. */
  chosen: number | null;
  onChoose: (id: number) => void;
}

/** Why a step was not finite: one page that can be shown to somebody who was not there. */
export function AutopsyReport({ autopsies, count, several, chosen, onChoose }: Props) {
  const shown = autopsies.find((one) => one.id === chosen) ?? autopsies[0];
  if (!shown) return <p className={tables.none}>No step has been examined: none had to be.</p>;
  const backward = shown.cause === "module_backward" || shown.parameters.backward === true;
  const where = (one: Autopsy) => `Step ${formatCount(one.step)}${several ? ` on rank ${one.rank}` : ""}`;
  return (
    <div className={classes.page} data-testid="autopsy" data-step={shown.step} data-rank={shown.rank}>
      {autopsies.length > 1 && (
        <div className={classes.choice}>
          <NativeSelect
            size="xs"
            aria-label="Which step"
            data-testid="autopsy-choice"
            value={String(shown.id)}
            onChange={(event) => onChoose(Number(event.currentTarget.value))}
            data={autopsies.map((one) => ({ value: String(one.id), label: where(one) }))}
          />
          {count > autopsies.length && (
            <span className="muted">
              {formatCount(count)} in all; the newest {formatCount(autopsies.length)} are kept here.
            </span>
          )}
        </div>
      )}
      <header className={classes.head}>
        <p className={classes.where}>
          {where(shown)} · {formatMoment(shown.time, Date.now() / 1000)}
        </p>
        <h2 className={classes.sentence} data-testid="autopsy-sentence">
          {shown.sentence}
        </h2>
        {shown.reproduced && (
          <p className={classes.reproduced}>
            The batch was run once more, with the weights as they were, and was not finite again.
          </p>
        )}
      </header>
      <Facts autopsy={shown} />
      {shown.module && (
        <p className={classes.module} data-testid="autopsy-module">
          <span className="muted">
            {backward
              ? "First layer on the way back whose gradient was not finite"
              : "First module whose output was not finite"}
          </span>
          <CopyText text={shown.module} what="the module's name" />
          {shown.module_kind && <span className="muted">{shown.module_kind}</span>}
        </p>
      )}
      <Tensors title="The batch" id="autopsy-inputs" tensors={shown.inputs} />
      <Tensors title="Outputs, in forward order" id="autopsy-outputs" tensors={shown.outputs} />
      <Tensors title="Weights with the most extreme values" id="autopsy-weights" tensors={shown.weights} />
      {shown.note && <p className={tables.caption}>{shown.note}</p>}
    </div>
  );
}

function Facts({ autopsy }: { autopsy: Autopsy }) {
  const { tokens, padded_tokens, supervised_tokens, samples } = autopsy;
  return (
    <dl className={classes.facts}>
      {autopsy.micro_batch !== null && (
        <Fact name="Micro-batch">{formatCount(autopsy.micro_batch + 1)} of the step</Fact>
      )}
      {autopsy.loss !== null && (
        <Fact name="Loss">
          <Value of={autopsy.loss} />
        </Fact>
      )}
      {supervised_tokens !== null && (
        <Fact name="Supervised tokens">
          <span className={supervised_tokens === 0 ? "bad" : undefined}>
            {formatCount(supervised_tokens)}
          </span>
        </Fact>
      )}
      {tokens !== null && <Fact name="Real tokens">{formatCount(tokens)}</Fact>}
      {tokens !== null && padded_tokens !== null && padded_tokens > 0 && (
        <Fact name="Padding">
          {formatPercent(1 - tokens / padded_tokens)} of {formatCount(padded_tokens)}
        </Fact>
      )}
      {autopsy.learning_rate !== null && (
        <Fact name="Learning rate">
          <Value of={autopsy.learning_rate} />
        </Fact>
      )}
      {autopsy.loss_scale !== null && (
        <Fact name="Loss scale">
          <Value of={autopsy.loss_scale} />
        </Fact>
      )}
      <Fact name="Examined in">{formatDuration(autopsy.seconds)}</Fact>
      {samples.length > 0 && (
        <Fact name={samples.length === 1 ? "Sample in the data set" : "Samples in the data set"}>
          <CopyText text={samples.join(", ")} what="the samples' indices" />
        </Fact>
      )}
    </dl>
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

const COLUMNS = [
  { title: "Name" },
  { title: "Finite values" },
  { title: "Not finite" },
  { title: "Shape" },
  { title: "Type" },
];

function Tensors({ title, id, tensors }: { title: string; id: string; tensors: readonly TensorInfo[] }) {
  if (tensors.length === 0) return null;
  return (
    <section>
      <h3 className={tables.heading}>{title}</h3>
      <DataTable columns={COLUMNS} id={id}>
        {tensors.map((one, place) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a module that is called twice stands there twice
          <tr key={`${one.name}/${place}`} data-testid="tensor-row" data-bad={isBad(one) || undefined}>
            <td className={classes.name}>
              <span className="mono">{one.name}</span>
            </td>
            <td className={classes.short}>{rangeText(one)}</td>
            <td className={classes.short}>
              {isBad(one) ? <span className="bad">{badText(one)}</span> : <span className="muted">–</span>}
            </td>
            <td className={classes.short}>{shapeText(one.shape)}</td>
            <td className={classes.short}>
              {one.dtype} <span className="muted">{one.device}</span>
            </td>
          </tr>
        ))}
      </DataTable>
    </section>
  );
}
