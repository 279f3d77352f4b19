import { Select, TextInput } from "@mantine/core";
import { type RunFilter, STATES, type State } from "../lib/filter";
import { STATE_LOOKS } from "../lib/run";
import { IconSearch } from "./icons";
import classes from "./RunFilters.module.css";
import { StateGlyph } from "./StateMark";

interface Props {
  filter: RunFilter;
  counts: Record<State, number>;
  projects: string[];
  onChange: (filter: RunFilter) => void;
}

export function RunFilters({ filter, counts, projects, onChange }: Props) {
  const total = STATES.reduce((sum, state) => sum + counts[state], 0);
  const states = STATES.filter((state) => counts[state] > 0 || state === filter.state);
  return (
    <div className={classes.bar}>
      <TextInput
        className={classes.search}
        size="xs"
        placeholder="Name, id, node, diagnosis"
        aria-label="Filter runs by text"
        data-testid="filter-text"
        leftSection={<IconSearch size={14} />}
        value={filter.text}
        onChange={(event) => onChange({ ...filter, text: event.currentTarget.value })}
      />
      {projects.length > 1 && (
        <Select
          className={classes.project}
          size="xs"
          aria-label="Filter runs by project"
          placeholder="All projects"
          data={projects}
          value={filter.project}
          onChange={(project) => onChange({ ...filter, project })}
          clearable
          searchable={projects.length > 8}
        />
      )}
      <fieldset className={classes.states}>
        <legend className="visually-hidden">Filter runs by state</legend>
        <button
          type="button"
          className={classes.chip}
          aria-pressed={filter.state === null}
          onClick={() => onChange({ ...filter, state: null })}
        >
          All <span className={classes.count}>{total}</span>
        </button>
        {states.map((state) => (
          <button
            key={state}
            type="button"
            className={classes.chip}
            aria-pressed={filter.state === state}
            data-testid={`filter-${state}`}
            onClick={() => onChange({ ...filter, state: filter.state === state ? null : state })}
          >
            <StateGlyph state={state} />
            {STATE_LOOKS[state].label} <span className={classes.count}>{counts[state]}</span>
          </button>
        ))}
      </fieldset>
    </div>
  );
}
