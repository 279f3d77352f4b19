import { Button, Select, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { useAddSilence, useEndSilence, useSilences } from "../api/channels";
import { formatMoment } from "../lib/time";
import access from "./Access.module.css";
import classes from "./Channels.module.css";
import { DataTable } from "./DataTable";
import { useNow } from "./useNow";

const COLUMNS = [{ title: "Rules" }, { title: "Runs" }, { title: "Why" }, { title: "Until" }, { title: "" }];
const HOURS = [
  { value: "1", label: "for an hour" },
  { value: "8", label: "for 8 hours" },
  { value: "24", label: "for a day" },
  { value: "168", label: "for a week" },
  { value: "ever", label: "for ever" },
];

/** What nobody in a project wants to hear of: shown on the pages all the same. */
export function Silences({ project }: { project: string }) {
  const now = useNow();
  const { data } = useSilences(project);
  const end = useEndSilence(project);
  return (
    <section className={access.section} data-testid="silences">
      <div className={access.bar}>
        <h2 className={access.heading}>Silences</h2>
      </div>
      <p className={access.note}>
        Alerts of these rules and runs are shown, and nobody is told. A single alert is silenced with its
        bell, on the run's page.
      </p>
      {data && data.length > 0 && (
        <DataTable columns={COLUMNS} id="silence-table">
          {data.map((silence) => (
            <tr key={silence.id}>
              <td>{silence.rule || "all"}</td>
              <td>{silence.run || "all"}</td>
              <td>{silence.reason || "–"}</td>
              <td className={access.nowrap}>
                {typeof silence.until === "number" ? formatMoment(silence.until, now) : "for ever"}
              </td>
              <td className={access.right}>
                <Button
                  size="compact-xs"
                  variant="default"
                  loading={end.isPending && end.variables === silence.id}
                  onClick={() => end.mutate(silence.id)}
                >
                  End
                </Button>
              </td>
            </tr>
          ))}
        </DataTable>
      )}
      <NewSilence project={project} />
    </section>
  );
}

function NewSilence({ project }: { project: string }) {
  const [rule, setRule] = useState("");
  const [run, setRun] = useState("");
  const [reason, setReason] = useState("");
  const [hours, setHours] = useState("8");
  const add = useAddSilence(project);

  function submit(event: FormEvent) {
    event.preventDefault();
    const wish = { rule: rule.trim(), run: run.trim(), reason: reason.trim() };
    add.mutate(
      { ...wish, hours: hours === "ever" ? null : Number(hours) },
      {
        onSuccess: () => {
          setRule("");
          setRun("");
          setReason("");
        },
      },
    );
  }

  return (
    <form onSubmit={submit} className={classes.silence}>
      <TextInput
        size="xs"
        label="Rules"
        placeholder="all, or loss_*"
        value={rule}
        onChange={(event) => setRule(event.currentTarget.value)}
      />
      <TextInput
        size="xs"
        label="Runs"
        placeholder="all, or test-*"
        value={run}
        onChange={(event) => setRun(event.currentTarget.value)}
      />
      <TextInput
        size="xs"
        label="Why"
        value={reason}
        onChange={(event) => setReason(event.currentTarget.value)}
      />
      <Select
        size="xs"
        w={130}
        label="How long"
        data={HOURS}
        value={hours}
        onChange={(next) => next && setHours(next)}
        allowDeselect={false}
      />
      <Button size="xs" type="submit" variant="default" loading={add.isPending} data-testid="silence-add">
        Silence
      </Button>
      {add.error && (
        <Text size="sm" role="alert" style={{ color: "var(--tw-critical)", width: "100%" }}>
          {add.error.message}
        </Text>
      )}
    </form>
  );
}
