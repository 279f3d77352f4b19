import { Select } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";
import { useLive } from "../api/live";
import { useRuns } from "../api/runs";
import type { Session } from "../api/types";
import access from "../components/Access.module.css";
import { Retention } from "../components/Retention";
import rules from "../components/Rules.module.css";
import { SettingsLayout } from "../components/SettingsLayout";
import { WithSession } from "../components/WithSession";
import pages from "./pages.module.css";

/** How long projects keep their data. */
export function DataPage() {
  useDocumentTitle("Data · TrainWatch");
  useLive(null);
  return (
    <SettingsLayout here="/settings/data">
      <WithSession>{(session) => <Chosen session={session} />}</WithSession>
    </SettingsLayout>
  );
}

function Chosen({ session }: { session: Session }) {
  const { data: runs } = useRuns(null, 1);
  const own = session.project || null;
  const projects = own === null ? [...new Set(runs?.projects.length ? runs.projects : ["default"])] : [own];
  const [wanted, setWanted] = useState<string | null>(own);
  const project = wanted ?? projects[0] ?? "default";
  if (!session.scopes.includes("admin"))
    return (
      <>
        <h1 className={pages.title}>Data</h1>
        <p className={pages.nothing}>How long data is kept is set by those who have the scope admin.</p>
      </>
    );
  return (
    <>
      <div className={rules.bar}>
        <h1 className={pages.title}>Data</h1>
        {projects.length > 1 && (
          <Select
            size="xs"
            w={200}
            aria-label="Project"
            data-testid="data-project"
            data={projects}
            value={project}
            onChange={(next) => next && setWanted(next)}
            allowDeselect={false}
          />
        )}
      </div>
      <Retention key={project} project={project} />
      <section className={access.section}>
        <h2 className={access.heading}>Archives and backups</h2>
        <p className={access.note}>
          <code>trainwatch db archive --older-than 180 --to FOLDER</code> writes old runs to Parquet files,
          and <code>trainwatch db restore FILE</code> brings one back. <code>trainwatch db backup FILE</code>{" "}
          copies an SQLite database while the server runs. A single run is deleted on its own page.
        </p>
      </section>
    </>
  );
}
