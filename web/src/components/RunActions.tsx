import { Button, Modal, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { type Action, useCommand } from "../api/commands";
import type { RunDetail } from "../api/types";
import { DialogFoot } from "./DialogFoot";
import { IconSave, IconStop } from "./icons";

const SAYS: Record<Action, { title: string; text: string; button: string; sent: string }> = {
  halt: {
    title: "Halt this run?",
    text:
      "The training saves a checkpoint and stops; all ranks stop at the same step. It takes effect within seconds, " +
      "and cannot be undone, but the run can be resumed from the checkpoint.",
    button: "Halt the run",
    sent: "Halt requested; it takes effect between two steps.",
  },
  checkpoint: {
    title: "Save a checkpoint now?",
    text: "The training saves a checkpoint after the present step and goes on.",
    button: "Save a checkpoint",
    sent: "Checkpoint requested.",
  },
};

/** What a person can ask of a running run. Each is confirmed first. */
export function RunActions({ run }: { run: RunDetail }) {
  const [action, setAction] = useState<Action>("halt");
  const [open, setOpen] = useState(false);
  const [reason, setReason] = useState("");
  const command = useCommand(run.id);
  const says = SAYS[action];

  function ask(wanted: Action) {
    command.reset();
    setAction(wanted);
    setReason("");
    setOpen(true);
  }

  function confirm(event: FormEvent) {
    event.preventDefault();
    command.mutate({ action, reason: reason.trim() }, { onSuccess: () => setOpen(false) });
  }

  return (
    <>
      {command.isSuccess && (
        <Text size="xs" c="dimmed" role="status" style={{ alignSelf: "center" }} data-testid="command-sent">
          {says.sent}
        </Text>
      )}
      <Button
        size="xs"
        variant="default"
        leftSection={<IconSave size={14} />}
        onClick={() => ask("checkpoint")}
        data-testid="checkpoint"
      >
        Checkpoint
      </Button>
      <Button
        size="xs"
        variant="default"
        leftSection={<IconStop size={14} />}
        onClick={() => ask("halt")}
        data-testid="halt"
        style={{ color: "var(--tw-critical)" }}
      >
        Halt…
      </Button>
      <Modal opened={open} onClose={() => setOpen(false)} title={says.title} centered>
        <form onSubmit={confirm} data-testid="command-dialog">
          <Text size="sm">{says.text}</Text>
          {action === "halt" && (
            <TextInput
              mt="md"
              label="Reason"
              description="Shown on this page and in the training's log."
              value={reason}
              onChange={(event) => setReason(event.currentTarget.value)}
              maxLength={1000}
              data-autofocus
            />
          )}
          <DialogFoot error={command.error} onCancel={() => setOpen(false)}>
            <Button
              size="xs"
              type="submit"
              color={action === "halt" ? "danger" : "petrol"}
              loading={command.isPending}
              data-testid="command-confirm"
            >
              {says.button}
            </Button>
          </DialogFoot>
        </form>
      </Modal>
    </>
  );
}
