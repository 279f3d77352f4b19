import { TextInput } from "@mantine/core";
import { type ReactNode, useMemo, useState } from "react";
import type { RunDetail } from "../api/types";
import { lengthsOf, withoutHistogram } from "../lib/dataset";
import { flatten, type Row, searchRows } from "../lib/flatten";
import tables from "./DataTable.module.css";
import { Differences } from "./Differences";
import { IconChevron, IconSearch } from "./icons";
import { LengthHistogram } from "./LengthHistogram";
import classes from "./Setup.module.css";
import { Signals } from "./Signals";

/** With what the run was started: model, environment, the Trainer's arguments. One search over all of it. */
export function Setup({ run }: { run: RunDetail }) {
  const [text, setText] = useState("");
  const parts = useMemo(
    () => [
      { title: "Data", rows: flatten(lengthsOf(run.dataset) ? withoutHistogram(run.dataset) : run.dataset) },
      { title: "Model", rows: flatten(run.model) },
      { title: "Environment", rows: flatten({ ...run.environment, output_dir: run.output_dir }) },
      { title: "Trainer arguments", rows: flatten(run.arguments) },
    ],
    [run.dataset, run.model, run.environment, run.arguments, run.output_dir],
  );
  const lengths = useMemo(() => lengthsOf(run.dataset), [run.dataset]);
  const shown = parts.filter((part) => part.title !== "Data" || part.rows.length > 0);
  const found = shown.map((part) => ({ ...part, rows: searchRows(part.rows, text), all: part.rows.length }));
  return (
    <div data-testid="setup">
      <Differences differences={run.differences} />
      <Signals signals={run.signals} several={run.world_size > 1} />
      {(run.differences.length > 0 || run.signals.length > 0) && (
        <h3 className={tables.heading}>How it was started</h3>
      )}
      <TextInput
        className={classes.search}
        size="xs"
        placeholder="Search in settings and versions"
        aria-label="Search in settings and versions"
        leftSection={<IconSearch size={14} />}
        value={text}
        onChange={(event) => setText(event.currentTarget.value)}
      />
      {found.map((part) => (
        <Part
          key={part.title}
          title={part.title}
          rows={part.rows}
          all={part.all}
          searching={text.trim() !== ""}
        >
          {part.title === "Data" && lengths && text.trim() === "" && <LengthHistogram lengths={lengths} />}
        </Part>
      ))}
    </div>
  );
}

function Part({
  title,
  rows,
  all,
  searching,
  children,
}: {
  title: string;
  rows: Row[];
  all: number;
  searching: boolean;
  children?: ReactNode;
}) {
  const [open, setOpen] = useState(true);
  return (
    <section className={classes.part}>
      <button type="button" className={classes.head} aria-expanded={open} onClick={() => setOpen(!open)}>
        <IconChevron size={14} />
        {title}
        <span className="muted">{searching ? `${rows.length} of ${all}` : all}</span>
      </button>
      {open && rows.length > 0 && (
        <dl className={classes.rows}>
          {rows.map((row) => (
            <div key={row.key} className={classes.row}>
              <dt>{row.key}</dt>
              <dd>{row.value === "" ? <span className="muted">empty</span> : row.value}</dd>
            </div>
          ))}
        </dl>
      )}
      {open && children}
    </section>
  );
}
