import { Button, Modal, Switch, Text } from "@mantine/core";
import { useState } from "react";
import { useDeliveries, useRemoveChannel, useSaveChannel, useTestChannel } from "../api/channels";
import type { Channel } from "../api/types";
import { draftOf, KINDS, wishOf } from "../lib/channels";
import { formatDuration } from "../lib/time";
import access from "./Access.module.css";
import { ChannelForm } from "./ChannelForm";
import classes from "./Channels.module.css";
import { DeliveryTable } from "./DeliveryTable";
import { IconChevron } from "./icons";
import rules from "./Rules.module.css";

interface Props {
  project: string | null;
  channel: Channel;
}

/** One channel: where it leads, whether it works, and the form to change it. */
export function ChannelCard({ project, channel }: Props) {
  const [open, setOpen] = useState(false);
  const [asked, setAsked] = useState(false);
  const toggle = useSaveChannel(project);
  const test = useTestChannel(project);
  const remove = useRemoveChannel(project);

  return (
    <section className={rules.card} data-testid="channel" data-on={channel.enabled}>
      <div className={rules.head}>
        <Switch
          size="xs"
          checked={channel.enabled}
          onChange={(event) =>
            toggle.mutate({
              id: channel.id,
              wish: { ...wishOf(draftOf(channel, "UTC")), enabled: event.currentTarget.checked },
            })
          }
          aria-label={`${channel.name} is ${channel.enabled ? "on" : "off"}`}
          data-testid="channel-on"
        />
        <button
          type="button"
          className={classes.head}
          aria-expanded={open}
          onClick={() => setOpen(!open)}
          data-testid="channel-open"
        >
          <span className={rules.name}>{channel.name}</span>
          <span className={classes.target}>
            {KINDS[channel.kind].title} · {channel.target}
          </span>
          <span className={rules.marks}>
            <span className={rules.mark}>{channel.least === "info" ? "all" : channel.least}</span>
            {channel.quiet && (
              <span className={rules.mark} title={channel.quiet.zone}>
                quiet {channel.quiet.start}–{channel.quiet.end}
              </span>
            )}
            {channel.waiting > 0 && <span className={rules.mark}>{channel.waiting} waiting</span>}
          </span>
          <span className={rules.chevron} data-open={open}>
            <IconChevron size={14} />
          </span>
        </button>
      </div>
      {(channel.disabled_reason || toggle.error) && (
        <div className={classes.reason} role="alert" data-testid="channel-reason">
          {toggle.error
            ? toggle.error.message
            : `Nothing is sent any more. ${channel.disabled_reason} Repair it, then switch it on again.`}
        </div>
      )}
      {open && (
        <div className={rules.body}>
          <ChannelForm project={project} channel={channel} onSaved={() => test.reset()}>
            <Button
              size="xs"
              variant="default"
              loading={test.isPending}
              onClick={() => test.mutate(channel.id)}
              data-testid="channel-test"
            >
              Send a test
            </Button>
            <Button size="xs" variant="default" onClick={() => setAsked(true)}>
              Remove…
            </Button>
          </ChannelForm>
          {test.data && (
            <p
              className={classes.outcome}
              data-sent={test.data.sent}
              role="status"
              data-testid="channel-outcome"
            >
              {test.data.sent
                ? `It arrived, in ${formatDuration(test.data.seconds)}.`
                : `It did not arrive. ${test.data.error}`}
            </p>
          )}
          {test.error && (
            <p className={classes.outcome} data-sent={false} role="alert">
              {test.error.message}
            </p>
          )}
          <h3 className={rules.heading}>Last deliveries</h3>
          <LastDeliveries project={project} channel={channel.id} />
        </div>
      )}
      <Modal opened={asked} onClose={() => setAsked(false)} title={`Remove ${channel.name}?`} centered>
        <Text size="sm">
          Nothing is sent there any more, and the record of what was sent goes with it. To stop it for a
          while, switch it off.
        </Text>
        <div className={access.buttons}>
          <Button size="xs" variant="default" onClick={() => setAsked(false)}>
            Cancel
          </Button>
          <Button
            size="xs"
            color="danger"
            loading={remove.isPending}
            onClick={() => remove.mutate(channel.id, { onSuccess: () => setAsked(false) })}
            data-testid="channel-remove"
          >
            Remove
          </Button>
        </div>
      </Modal>
    </section>
  );
}

function LastDeliveries({ project, channel }: { project: string | null; channel: number }) {
  const { data } = useDeliveries(project, channel);
  if (!data) return null;
  if (data.length === 0) return <p className={rules.note}>Nothing was sent yet.</p>;
  return <DeliveryTable deliveries={data} shows="run" />;
}
