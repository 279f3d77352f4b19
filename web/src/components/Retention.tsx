import { Button, Modal, NumberInput, Skeleton, Text } from "@mantine/core";
import { useState } from "react";
import { retryNow } from "../api/live";
import { type Kept, useRetention, useSetRetention } from "../api/retention";
import access from "./Access.module.css";
import { ErrorPane } from "./ErrorPane";
import classes from "./Retention.module.css";

const FIELDS = [
  {
    name: "raw",
    label: "Single points",
    description: "After that curves keep every extreme and every NaN, and lose the points between.",
  },
  {
    name: "rollups",
    label: "Curves",
    description: "After that a run's summary, alerts and evidence are left.",
  },
  { name: "runs", label: "Runs", description: "After that nothing is left." },
] as const;

/** How long a project keeps its data, to be read and changed. */
export function Retention({ project }: { project: string }) {
  const { data, error } = useRetention(project);
  if (error && !data)
    return (
      <ErrorPane title="How long data is kept could not be read" onRetry={retryNow}>
        {error.message}
      </ErrorPane>
    );
  if (!data) return <Skeleton h={220} radius={8} />;
  const kept = { raw: data.raw ?? null, rollups: data.rollups ?? null, runs: data.runs ?? null };
  return <Fields key={JSON.stringify(kept)} project={project} kept={kept} />;
}

function Fields({ project, kept }: { project: string; kept: Kept }) {
  const [wish, setWish] = useState<Kept>(kept);
  const [asking, setAsking] = useState(false);
  const save = useSetRetention(project);
  const changed = FIELDS.some(({ name }) => wish[name] !== kept[name]);

  function confirm() {
    save.mutate(wish, { onSettled: () => setAsking(false) });
  }

  return (
    <form
      data-testid="retention"
      onSubmit={(event) => {
        event.preventDefault();
        setAsking(true);
      }}
    >
      <p className={access.note}>
        Days after a run of this project was heard last. An empty field keeps for ever. Runs that are still
        running lose nothing.
      </p>
      <div className={classes.fields}>
        {FIELDS.map(({ name, label, description }) => (
          <NumberInput
            key={name}
            size="sm"
            label={label}
            description={description}
            inputWrapperOrder={["label", "input", "description"]}
            placeholder="for ever"
            suffix=" days"
            min={0}
            max={36500}
            allowNegative={false}
            hideControls
            value={wish[name] ?? ""}
            onChange={(value) => setWish({ ...wish, [name]: typeof value === "number" ? value : null })}
            data-testid={`retention-${name}`}
          />
        ))}
      </div>
      {save.error && (
        <Text mt="sm" size="sm" role="alert" style={{ color: "var(--tw-critical)" }}>
          {save.error.message}
        </Text>
      )}
      <Button mt="md" size="xs" type="submit" disabled={!changed} data-testid="retention-save">
        Save
      </Button>
      <Modal opened={asking} onClose={() => setAsking(false)} title="Keep data no longer than that?" centered>
        <Text size="sm">
          What is older is dropped within minutes, and cannot be had back. Archive first what you may want
          again.
        </Text>
        <div className={classes.buttons}>
          <Button size="xs" variant="default" onClick={() => setAsking(false)}>
            Cancel
          </Button>
          <Button
            size="xs"
            color="danger"
            onClick={confirm}
            loading={save.isPending}
            data-testid="retention-confirm"
          >
            Save
          </Button>
        </div>
      </Modal>
    </form>
  );
}
