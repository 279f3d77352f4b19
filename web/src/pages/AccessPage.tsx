import { Button, Skeleton } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useLogout, useSessions, useTokens } from "../api/access";
import { retryNow, useLive } from "../api/live";
import { useRuns } from "../api/runs";
import type { Session } from "../api/types";
import classes from "../components/Access.module.css";
import { ErrorPane } from "../components/ErrorPane";
import { NewToken } from "../components/NewToken";
import { SessionTable } from "../components/SessionTable";
import { SettingsLayout } from "../components/SettingsLayout";
import { Scopes, TokenTable } from "../components/TokenTable";
import { WithSession } from "../components/WithSession";
import pages from "./pages.module.css";

/** Who may use this server: tokens, and the browsers that are logged in. */
export function AccessPage() {
  useDocumentTitle("Access · TrainWatch");
  useLive(null);
  return (
    <SettingsLayout here="/settings/access">
      <h1 className={pages.title}>Access</h1>
      <WithSession>
        {(session) => (
          <>
            <Who session={session} />
            {session.scopes.includes("admin") ? (
              <Tokens session={session} />
            ) : (
              <p className={pages.nothing}>Tokens are made and revoked by those who have the scope admin.</p>
            )}
          </>
        )}
      </WithSession>
    </SettingsLayout>
  );
}

function Who({ session }: { session: Session }) {
  const logout = useLogout();
  if (session.open)
    return (
      <p className={classes.note} data-testid="access-open">
        This server has no token: everybody on its machine is let in and may do everything, and nobody else
        reaches it. To let others in, start it with <code>TRAINWATCH_TOKEN</code>; the tokens made here hold
        then too.
      </p>
    );
  return (
    <div className={classes.who} data-testid="access-who">
      <span>
        You are <b>{session.name}</b>, {session.project ? `of project ${session.project}` : "of all projects"}
      </span>
      <Scopes scopes={session.scopes} />
      {session.logged_in && (
        <Button size="xs" variant="default" loading={logout.isPending} onClick={() => logout.mutate()}>
          Log out
        </Button>
      )}
    </div>
  );
}

function Tokens({ session }: { session: Session }) {
  const own = session.project || null;
  const { data: tokens, error } = useTokens(own, true);
  const { data: sessions } = useSessions(own === null && !session.open);
  const { data: runs } = useRuns(null, 1);
  const [making, setMaking] = useState(false);
  return (
    <>
      <section className={classes.section}>
        <div className={classes.bar}>
          <h2 className={classes.heading}>Tokens</h2>
          <Button size="xs" onClick={() => setMaking(true)} data-testid="token-new">
            New token…
          </Button>
        </div>
        <p className={classes.note}>
          Agents ship with a token of the scope ingest: it opens one project, for writing only, and is of
          little use to whoever finds it. People log in with a token that may read.
        </p>
        {error && !tokens ? (
          <ErrorPane title="The tokens could not be loaded" onRetry={retryNow}>
            {error.message}
          </ErrorPane>
        ) : tokens ? (
          tokens.length > 0 ? (
            <TokenTable tokens={tokens} own={own} />
          ) : (
            <p className={pages.nothing}>There are none yet.</p>
          )
        ) : (
          <Skeleton h={120} radius={8} />
        )}
      </section>
      {sessions && sessions.length > 0 && (
        <section className={classes.section}>
          <div className={classes.bar}>
            <h2 className={classes.heading}>Logged in</h2>
          </div>
          <SessionTable sessions={sessions} />
        </section>
      )}
      {making && <NewToken own={own} projects={runs?.projects ?? []} onClose={() => setMaking(false)} />}
    </>
  );
}
