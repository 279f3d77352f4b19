import { Select, Switch, TextInput } from "@mantine/core";
import type { OptionInfo } from "../api/types";
import { rangeText } from "../lib/rules";
import classes from "./Rules.module.css";

interface Props {
  option: OptionInfo;
  value: string;
  problem: string | undefined;
  onChange: (value: string) => void;
}

/** A field for one option of a rule; empty, it shows the default. */
export function RuleOption({ option, value, problem, onChange }: Props) {
  const shown = String(option.default);
  const common = {
    size: "xs" as const,
    label: <span className="mono">{option.name}</span>,
    description: <span className={classes.description}>{option.meaning}</span>,
    error: problem && <span className={classes.problem}>{problem}</span>,
    "data-testid": `option-${option.name}`,
  };
  if (option.kind === "choice")
    return (
      <Select
        {...common}
        data={option.choices.map((choice) => ({
          value: choice,
          label: choice === shown ? `${choice} (default)` : choice,
        }))}
        value={value || shown}
        onChange={(next) => onChange(next === null || next === shown ? "" : next)}
        allowDeselect={false}
      />
    );
  if (option.kind === "yes or no")
    return (
      <Switch
        {...common}
        checked={(value || shown) === "true"}
        onChange={(event) => onChange(String(event.currentTarget.checked))}
      />
    );
  const range = rangeText(option);
  return (
    <TextInput
      {...common}
      inputMode="decimal"
      placeholder={`${shown} (default)`}
      rightSection={range ? <span className={classes.range}>{range}</span> : null}
      rightSectionWidth={range ? 92 : undefined}
      rightSectionPointerEvents="none"
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
}
