import { Select, Skeleton } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useLocation } from "wouter";
import { retryNow, useLive } from "../api/live";
import { useRules } from "../api/rules";
import { useRuns } from "../api/runs";
import { ErrorPane } from "../components/ErrorPane";
import { RuleCard } from "../components/RuleCard";
import classes from "../components/Rules.module.css";
import type { RuleSettings } from "../lib/rules";
import pages from "./pages.module.css";

/** The rules of a project; without a name, of the first one there is. */
export function RulesPage({ name }: { name: string | null }) {
  const { data: runs } = useRuns(null, 1);
  useLive(null);
  const projects = runs?.projects ?? [];
  const project = name ?? (runs ? (projects[0] ?? "default") : null);
  return project === null ? (
    <Skeleton h={300} radius={8} />
  ) : (
    <Rules key={project} project={project} projects={projects} />
  );
}

function Rules({ project, projects }: { project: string; projects: string[] }) {
  const { data, error } = useRules(project);
  const [, go] = useLocation();
  useDocumentTitle(`Rules · ${project} · TrainWatch`);
  if (error && !data)
    return (
      <ErrorPane title="The rules could not be loaded" onRetry={retryNow}>
        {error.message}
      </ErrorPane>
    );
  const listed = projects.includes(project) ? projects : [project, ...projects];
  return (
    <>
      <div className={classes.bar}>
        <h1 className={pages.title}>Rules</h1>
        <Select
          size="xs"
          w={200}
          aria-label="Project"
          data-testid="rules-project"
          data={listed}
          value={project}
          onChange={(next) => next && go(`/rules/${encodeURIComponent(next)}`)}
          allowDeselect={false}
          searchable={listed.length > 8}
        />
      </div>
      <p className={classes.note}>
        What is set here holds for all runs of the project; those that are running hear of it within seconds.
        A training script, and its trainwatch.toml, go before it.
      </p>
      {data ? (
        <div className={classes.list} data-testid="rules">
          {data.rules.map((rule) => (
            <RuleCard key={rule.id} project={project} rule={rule} settings={data.settings as RuleSettings} />
          ))}
        </div>
      ) : (
        <Skeleton h={300} radius={8} />
      )}
    </>
  );
}
