import { Button, Modal, Select, Skeleton } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useChannels } from "../api/channels";
import { retryNow, useLive } from "../api/live";
import { useRuns } from "../api/runs";
import type { Session } from "../api/types";
import access from "../components/Access.module.css";
import { ChannelCard } from "../components/ChannelCard";
import { ChannelForm } from "../components/ChannelForm";
import { ErrorPane } from "../components/ErrorPane";
import rules from "../components/Rules.module.css";
import { SettingsLayout } from "../components/SettingsLayout";
import { Silences } from "../components/Silences";
import { WithSession } from "../components/WithSession";
import pages from "./pages.module.css";

const ALL = "";

/** Where alerts go: channels, what they were told, and what nobody wants to hear of. */
export function AlertsPage() {
  useDocumentTitle("Alerts · TrainWatch");
  useLive(null);
  return (
    <SettingsLayout here="/settings/alerts">
      <WithSession>{(session) => <Chosen session={session} />}</WithSession>
    </SettingsLayout>
  );
}

function Chosen({ session }: { session: Session }) {
  const { data: runs } = useRuns(null, 1);
  const own = session.project || null;
  const admin = session.scopes.includes("admin");
  const [chosen, setChosen] = useState<string>(own ?? ALL);
  const projects = own === null ? [...new Set(runs?.projects.length ? runs.projects : ["default"])] : [own];
  const choices = [
    ...(own === null ? [{ value: ALL, label: "All projects" }] : []),
    ...projects.map((project) => ({ value: project, label: project })),
  ];
  return (
    <>
      <div className={rules.bar}>
        <h1 className={pages.title}>Alerts</h1>
        {choices.length > 1 && (
          <Select
            size="xs"
            w={200}
            aria-label="Project"
            data-testid="alerts-project"
            data={choices}
            value={chosen}
            onChange={(next) => next !== null && setChosen(next)}
            allowDeselect={false}
            searchable={choices.length > 8}
          />
        )}
      </div>
      {admin ? (
        <Channels key={chosen} project={chosen === ALL ? null : chosen} />
      ) : (
        <p className={pages.nothing}>Channels are set by those who have the scope admin.</p>
      )}
      {chosen !== ALL && <Silences key={chosen} project={chosen} />}
    </>
  );
}

function Channels({ project }: { project: string | null }) {
  const { data: channels, error } = useChannels(project);
  const [making, setMaking] = useState(false);
  return (
    <section style={{ marginTop: 18 }}>
      <div className={access.bar}>
        <h2 className={access.heading}>Channels</h2>
        <Button size="xs" onClick={() => setMaking(true)} data-testid="channel-new">
          New channel…
        </Button>
      </div>
      <p className={access.note}>
        {project === null
          ? "These are told of the alerts of all projects, from the moment they are added."
          : "These are told of this project's alerts, from the moment they are added; so are those for all projects."}
      </p>
      {error && !channels ? (
        <ErrorPane title="The channels could not be loaded" onRetry={retryNow}>
          {error.message}
        </ErrorPane>
      ) : channels ? (
        channels.length > 0 ? (
          <div className={rules.list} data-testid="channels">
            {channels.map((channel) => (
              <ChannelCard key={channel.id} project={project} channel={channel} />
            ))}
          </div>
        ) : (
          <p className={pages.nothing}>There are none yet: alerts are only shown here.</p>
        )
      ) : (
        <Skeleton h={120} radius={8} />
      )}
      <Modal opened={making} onClose={() => setMaking(false)} title="New channel" size="lg" centered>
        <ChannelForm project={project} channel={null} onSaved={() => setMaking(false)}>
          <Button size="xs" variant="default" onClick={() => setMaking(false)}>
            Cancel
          </Button>
        </ChannelForm>
      </Modal>
    </section>
  );
}
