import { Button, Modal, Text } from "@mantine/core";
import { useState } from "react";
import { useRevokeToken } from "../api/access";
import type { Scope, TokenInfo } from "../api/types";
import { formatEnd, tokenState } from "../lib/access";
import { formatAge } from "../lib/time";
import classes from "./Access.module.css";
import { DataTable } from "./DataTable";
import { useNow } from "./useNow";

const COLUMNS = [
  { title: "Name" },
  { title: "Project" },
  { title: "May" },
  { title: "Last used" },
  { title: "Expires" },
  { title: "" },
];

/** Tokens, those that open nothing any more in grey. */
export function TokenTable({ tokens, own }: { tokens: TokenInfo[]; own: string | null }) {
  const now = useNow();
  const [asked, setAsked] = useState<TokenInfo | null>(null);
  const revoke = useRevokeToken(own);

  function confirm() {
    if (asked) revoke.mutate(asked.id, { onSuccess: () => setAsked(null) });
  }

  return (
    <>
      <DataTable columns={COLUMNS} id="tokens">
        {tokens.map((token) => {
          const state = tokenState(token, now);
          return (
            <tr key={token.id} className={state === "valid" ? undefined : classes.gone} data-state={state}>
              <td>
                <span className={classes.name}>{token.name}</span>
                <span className={classes.id}>tw_{token.id}_…</span>
              </td>
              <td>{token.project || "all"}</td>
              <td>
                <Scopes scopes={token.scopes} />
              </td>
              <td className={classes.nowrap}>
                {token.last_used_at === null ? "never" : formatAge(token.last_used_at, now)}
              </td>
              <td className={classes.nowrap}>
                {state === "expired" && "expired "}
                {formatEnd(token, now)}
              </td>
              <td className="numeric">
                {state === "valid" && (
                  <Button
                    size="compact-xs"
                    variant="default"
                    onClick={() => setAsked(token)}
                    aria-label={`Revoke ${token.name}`}
                  >
                    Revoke…
                  </Button>
                )}
              </td>
            </tr>
          );
        })}
      </DataTable>
      <Modal
        opened={asked !== null}
        onClose={() => setAsked(null)}
        title={`Revoke ${asked?.name ?? ""}?`}
        centered
      >
        <Text size="sm">
          It opens nothing any more, at once, and browsers that logged in with it are logged out. Agents that
          ship with it keep everything in their journals until they are given another one. This cannot be
          undone.
        </Text>
        {revoke.error && (
          <Text size="sm" mt="sm" role="alert" className={classes.problem}>
            {revoke.error.message}
          </Text>
        )}
        <div className={classes.buttons}>
          <Button size="xs" variant="default" onClick={() => setAsked(null)}>
            Cancel
          </Button>
          <Button
            size="xs"
            color="danger"
            loading={revoke.isPending}
            onClick={confirm}
            data-testid="token-revoke"
          >
            Revoke
          </Button>
        </div>
      </Modal>
    </>
  );
}

export function Scopes({ scopes }: { scopes: Scope[] }) {
  return (
    <span className={classes.scopes}>
      {scopes.map((scope) => (
        <span key={scope} className={classes.scope}>
          {scope}
        </span>
      ))}
    </span>
  );
}
