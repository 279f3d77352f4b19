import { Button, NumberInput, PasswordInput, Select, Switch, Text, TextInput } from "@mantine/core";
import { type FormEvent, type ReactNode, useState } from "react";
import { useSaveChannel } from "../api/channels";
import type { Channel } from "../api/types";
import { type Draft, draftOf, KINDS, type Kind, newKey, wishOf } from "../lib/channels";
import classes from "./Channels.module.css";
import { CopyIcon } from "./CopyText";
import rules from "./Rules.module.css";

const SEVERITIES = [
  { value: "info", label: "everything" },
  { value: "warning", label: "warnings and worse" },
  { value: "critical", label: "only what is critical" },
];
const LANGUAGES = [
  { value: "en", label: "English" },
  { value: "zh", label: "中文" },
];
const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const ZONES = [...new Set([HERE, "UTC", ...Intl.supportedValuesOf("timeZone")])];

interface Props {
  project: string | null;
  channel: Channel | null;
  onSaved: () => void;
  /** Buttons beside the one that saves. */
  children?: ReactNode;
}

/** How a channel is to be. What is secret goes in and is never shown again. */
export function ChannelForm({ project, channel, onSaved, children }: Props) {
  const [draft, setDraft] = useState<Draft>(() => draftOf(channel, HERE));
  const save = useSaveChannel(project);
  const kind = KINDS[draft.kind];
  const edit = (changes: Partial<Draft>) => {
    save.reset();
    setDraft({ ...draft, ...changes });
  };

  function submit(event: FormEvent) {
    event.preventDefault();
    const wish = wishOf(draft);
    // Whoever saves a channel that the server disabled has repaired it.
    const repaired = { ...wish, enabled: wish.enabled || (channel?.disabled_reason ?? "") !== "" };
    save.mutate(
      { id: channel?.id ?? null, wish: repaired },
      {
        onSuccess: (saved) => {
          setDraft(draftOf(saved, HERE));
          onSaved();
        },
      },
    );
  }

  return (
    <form onSubmit={submit} data-testid="channel-form">
      <div className={classes.form}>
        <TextInput
          size="xs"
          label="Name"
          value={draft.name}
          onChange={(event) => edit({ name: event.currentTarget.value })}
          maxLength={100}
          required
          withAsterisk={false}
          data-testid="channel-name"
        />
        <Select
          size="xs"
          label="Kind"
          data={Object.entries(KINDS).map(([value, { title }]) => ({ value, label: title }))}
          value={draft.kind}
          onChange={(next) => next && edit({ kind: next as Kind })}
          allowDeselect={false}
          data-testid="channel-kind"
        />
        <PasswordInput
          className={classes.wide}
          size="xs"
          label="Address"
          description={channel ? `${kind.says} Now: ${channel.target}; empty keeps it.` : kind.says}
          placeholder={kind.placeholder}
          value={draft.url}
          onChange={(event) => edit({ url: event.currentTarget.value })}
          autoComplete="off"
          data-testid="channel-url"
        />
        {draft.kind === "webhook" && (
          <div className={`${classes.wide} ${classes.key}`}>
            <PasswordInput
              size="xs"
              label="Key"
              description={
                channel?.has_key
                  ? "What messages are signed with; empty keeps the one there is."
                  : "What messages are signed with: give the receiver the same one."
              }
              value={draft.key}
              onChange={(event) => edit({ key: event.currentTarget.value })}
              autoComplete="off"
              data-testid="channel-key"
            />
            <Button size="xs" variant="default" onClick={() => edit({ key: newKey() })}>
              Make one
            </Button>
            {draft.key && <CopyIcon text={draft.key} what="the key" />}
          </div>
        )}
        <Select
          size="xs"
          label="It hears of"
          data={SEVERITIES}
          value={draft.least}
          onChange={(next) => next && edit({ least: next as Draft["least"] })}
          allowDeselect={false}
        />
        <TextInput
          size="xs"
          label="Rules"
          placeholder="all; or patterns: loss_* nonfinite_*"
          value={draft.rules}
          onChange={(event) => edit({ rules: event.currentTarget.value })}
        />
        <Select
          size="xs"
          label="Language"
          data={LANGUAGES}
          value={draft.language}
          onChange={(next) => next && edit({ language: next as Draft["language"] })}
          allowDeselect={false}
        />
        <div className={classes.times}>
          <NumberInput
            size="xs"
            w={110}
            label="At most"
            description="messages"
            min={1}
            max={1000}
            value={draft.most}
            onChange={(next) => edit({ most: Number(next) || 1 })}
          />
          <NumberInput
            size="xs"
            w={110}
            label="In"
            description="minutes"
            min={1}
            max={1440}
            value={draft.minutes}
            onChange={(next) => edit({ minutes: Number(next) || 1 })}
          />
          <span className={classes.aside}>What is more is gathered into one.</span>
        </div>
        <Switch
          className={classes.wide}
          size="xs"
          label="Say also when an alert is over"
          checked={draft.send_resolved}
          onChange={(event) => edit({ send_resolved: event.currentTarget.checked })}
        />
        <Switch
          className={classes.wide}
          size="xs"
          label="Quiet hours: only what is critical passes, the rest waits for their end"
          checked={draft.quiet}
          onChange={(event) => edit({ quiet: event.currentTarget.checked })}
          data-testid="channel-quiet"
        />
        {draft.quiet && (
          <div className={`${classes.wide} ${classes.times}`}>
            <TextInput
              size="xs"
              type="time"
              label="From"
              value={draft.start}
              onChange={(event) => edit({ start: event.currentTarget.value })}
            />
            <TextInput
              size="xs"
              type="time"
              label="To"
              value={draft.end}
              onChange={(event) => edit({ end: event.currentTarget.value })}
            />
            <Select
              size="xs"
              w={220}
              label="Time zone"
              data={ZONES}
              value={draft.zone}
              onChange={(next) => next && edit({ zone: next })}
              searchable
              limit={50}
              allowDeselect={false}
            />
          </div>
        )}
      </div>
      {save.error && (
        <Text size="sm" mt="sm" role="alert" style={{ color: "var(--tw-critical)" }}>
          {save.error.message}
        </Text>
      )}
      <div className={rules.actions}>
        <Button
          size="xs"
          type="submit"
          loading={save.isPending}
          disabled={draft.name.trim() === "" || (channel === null && draft.url.trim() === "")}
          data-testid="channel-save"
        >
          {channel ? "Save" : "Add the channel"}
        </Button>
        {children}
      </div>
    </form>
  );
}
