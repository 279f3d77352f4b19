import { Button, Modal, Text } from "@mantine/core";
import { useState } from "react";
import { useLocation } from "wouter";
import { useDeleteRun } from "../api/retention";
import { DialogFoot } from "./DialogFoot";

/** Deletes a run that is over, after a question. */
export function DeleteRun({ id, name }: { id: string; name: string }) {
  const [open, setOpen] = useState(false);
  const [, go] = useLocation();
  const remove = useDeleteRun(id);
  return (
    <>
      <Button
        size="xs"
        variant="default"
        onClick={() => {
          remove.reset();
          setOpen(true);
        }}
        data-testid="delete-run"
      >
        Delete…
      </Button>
      <Modal opened={open} onClose={() => setOpen(false)} title="Delete this run?" centered>
        <Text size="sm">
          Everything that is known of <b>{name}</b> is deleted and cannot be had back. Its journal on the
          training machine stays.
        </Text>
        <DialogFoot error={remove.error} onCancel={() => setOpen(false)}>
          <Button
            size="xs"
            color="danger"
            loading={remove.isPending}
            onClick={() => remove.mutate(undefined, { onSuccess: () => go("/") })}
            data-testid="delete-confirm"
          >
            Delete the run
          </Button>
        </DialogFoot>
      </Modal>
    </>
  );
}
