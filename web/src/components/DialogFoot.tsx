import { Button, Text } from "@mantine/core";
import type { ReactNode } from "react";

/** The end of a dialog: what went wrong, a way out, and the button that does it. */
export function DialogFoot({
  error,
  onCancel,
  children,
}: {
  error: Error | null;
  onCancel: () => void;
  children: ReactNode;
}) {
  return (
    <>
      {error && (
        <Text mt="sm" size="sm" role="alert" style={{ color: "var(--tw-critical)" }}>
          {error.message}
        </Text>
      )}
      <div style={{ display: "flex", justifyContent: "flex-end", gap: 8, marginTop: 20 }}>
        <Button size="xs" variant="default" onClick={onCancel}>
          Cancel
        </Button>
        {children}
      </div>
    </>
  );
}
