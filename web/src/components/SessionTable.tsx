import { Button } from "@mantine/core";
import { useEndSession } from "../api/access";
import type { SessionInfo } from "../api/types";
import { formatAge, formatMoment } from "../lib/time";
import classes from "./Access.module.css";
import { DataTable } from "./DataTable";
import { Scopes } from "./TokenTable";
import { useNow } from "./useNow";

const COLUMNS = [
  { title: "Who" },
  { title: "Project" },
  { title: "May" },
  { title: "Last seen" },
  { title: "Ends" },
  { title: "" },
];

/** The browsers that are logged in. */
export function SessionTable({ sessions }: { sessions: SessionInfo[] }) {
  const now = useNow();
  const end = useEndSession();
  return (
    <DataTable columns={COLUMNS} id="sessions">
      {sessions.map((session) => (
        <tr key={session.id}>
          <td>
            <span className={classes.name}>{session.name}</span>
            <span className={classes.id}>
              {session.own
                ? "this browser"
                : session.sso
                  ? "single sign-on"
                  : session.token
                    ? "with a token"
                    : ""}
            </span>
          </td>
          <td>{session.project || "all"}</td>
          <td>
            <Scopes scopes={session.scopes} />
          </td>
          <td className={classes.nowrap}>
            {session.last_used_at === null ? "never" : formatAge(session.last_used_at, now)}
          </td>
          <td className={classes.nowrap}>{formatMoment(session.expires_at, now)}</td>
          <td className="numeric">
            {!session.own && (
              <Button
                size="compact-xs"
                variant="default"
                loading={end.isPending && end.variables === session.id}
                onClick={() => end.mutate(session.id)}
                aria-label={`End the session of ${session.name}`}
              >
                End
              </Button>
            )}
          </td>
        </tr>
      ))}
    </DataTable>
  );
}
