import { Autocomplete, Button, Checkbox, Modal, Select, Text, TextInput } from "@mantine/core";
import { type FormEvent, useState } from "react";
import { useMakeToken } from "../api/access";
import type { Scope } from "../api/types";
import { howToUse, SCOPES } from "../lib/access";
import classes from "./Access.module.css";
import { CopyIcon } from "./CopyText";

const DAYS = [
  { value: "7", label: "in 7 days" },
  { value: "30", label: "in 30 days" },
  { value: "90", label: "in 90 days" },
  { value: "365", label: "in a year" },
  { value: "never", label: "never" },
];

interface Props {
  /** Whose tokens the person administers; null: everybody's. */
  own: string | null;
  projects: string[];
  onClose: () => void;
}

/** The dialog that makes a token, and shows it this once. */
export function NewToken({ own, projects, onClose }: Props) {
  const [name, setName] = useState("");
  const [project, setProject] = useState(own ?? "");
  const [scopes, setScopes] = useState<Scope[]>(["ingest"]);
  const [days, setDays] = useState("90");
  const make = useMakeToken(own);

  function submit(event: FormEvent) {
    event.preventDefault();
    make.mutate({ name, project: project.trim(), scopes, days: days === "never" ? null : Number(days) });
  }

  if (make.data) {
    const lines = howToUse(make.data.token, make.data.scopes, make.data.project, window.location.origin);
    return (
      <Modal
        opened
        onClose={onClose}
        title={`The token of ${make.data.name}`}
        size="lg"
        centered
        closeOnClickOutside={false}
      >
        <Text size="sm">Copy it now: the server keeps only a hash of it, and nobody can show it again.</Text>
        <div className={classes.secret} data-testid="token-secret">
          <code>{make.data.token}</code>
          <CopyIcon text={make.data.token} what="the token" />
        </div>
        <Text size="sm" mt="md">
          To use it:
        </Text>
        <div className={classes.secret}>
          <pre>{lines}</pre>
          <CopyIcon text={lines} what="the lines" />
        </div>
        <div className={classes.buttons}>
          <Button size="xs" onClick={onClose} data-testid="token-done">
            I have copied it
          </Button>
        </div>
      </Modal>
    );
  }
  return (
    <Modal opened onClose={onClose} title="New token" centered>
      <form onSubmit={submit} className={classes.form} data-testid="token-form">
        <TextInput
          label="Name"
          description="Who or what uses it."
          placeholder="cluster A"
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
          maxLength={100}
          data-autofocus
          required
          withAsterisk={false}
        />
        {own === null && (
          <Autocomplete
            label="Project"
            description="The only project that it sees; empty for all."
            placeholder="all projects"
            data={projects}
            value={project}
            onChange={setProject}
            maxLength={100}
          />
        )}
        <Checkbox.Group
          label="It may"
          value={scopes}
          onChange={(next) => setScopes(next as Scope[])}
          data-testid="token-scopes"
        >
          {SCOPES.map(({ scope, title, says }) => (
            <Checkbox key={scope} size="xs" mt={8} value={scope} label={title} description={says} />
          ))}
        </Checkbox.Group>
        <Select
          label="It expires"
          data={DAYS}
          value={days}
          onChange={(next) => next && setDays(next)}
          allowDeselect={false}
        />
        {make.error && (
          <Text size="sm" role="alert" className={classes.problem}>
            {make.error.message}
          </Text>
        )}
        <div className={classes.buttons}>
          <Button size="xs" variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button
            size="xs"
            type="submit"
            loading={make.isPending}
            disabled={name.trim() === "" || scopes.length === 0}
            data-testid="token-make"
          >
            Make the token
          </Button>
        </div>
      </form>
    </Modal>
  );
}
