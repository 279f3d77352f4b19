import { Button, Switch, Text } from "@mantine/core";
import { useState } from "react";
import { ApiError } from "../api/client";
import { useBacktest, useSetRules } from "../api/rules";
import type { RuleInfo } from "../api/types";
import {
  type Draft,
  draftOf,
  isChanged,
  isOn,
  problemsOf,
  type RuleSettings,
  settingsOf,
  withRule,
} from "../lib/rules";
import { IconChevron } from "./icons";
import { RuleBacktest } from "./RuleBacktest";
import { RuleOption } from "./RuleOption";
import classes from "./Rules.module.css";

interface Props {
  project: string;
  rule: RuleInfo;
  settings: RuleSettings;
}

/** One rule: what it sees, and the fields to set it. */
export function RuleCard({ project, rule, settings }: Props) {
  const saved = settings[rule.id];
  const [open, setOpen] = useState(false);
  const [draft, setDraft] = useState<Draft>(() => draftOf(rule, saved));
  const set = useSetRules(project);
  const backtest = useBacktest(rule.id, project);
  const problems = set.error instanceof ApiError ? problemsOf(set.error.body, rule.id) : {};
  const unplaced = set.error && Object.keys(problems).length === 0 ? set.error.message : null;
  const on = isOn(rule, draft);
  const changed = isChanged(rule, draft, saved);
  const count = Object.keys(saved ?? {}).length;
  const action = String(saved?.action ?? rule.options.find(({ name }) => name === "action")?.default);
  const own = rule.options.filter((option) => !option.common);
  const common = rule.options.filter((option) => option.common && option.name !== "enabled");

  function save(next: Draft) {
    set.mutate(withRule(settings, rule.id, settingsOf(rule, next)), {
      onSuccess: (answer) => setDraft(draftOf(rule, answer.settings[rule.id])),
    });
  }

  function edit(name: string, value: string) {
    set.reset();
    setDraft({ ...draft, [name]: value });
  }

  function toggle(next: boolean) {
    // Nothing else that is being edited is saved with it.
    const now = { ...draftOf(rule, saved), enabled: String(next) };
    setDraft({ ...draft, enabled: String(next) });
    set.mutate(withRule(settings, rule.id, settingsOf(rule, now)), {
      onError: () => setDraft({ ...draft, enabled: String(!next) }),
    });
  }

  return (
    <section className={classes.card} data-testid="rule" data-rule={rule.id} data-on={on}>
      <div className={classes.head}>
        <Switch
          size="xs"
          checked={on}
          onChange={(event) => toggle(event.currentTarget.checked)}
          aria-label={`${rule.id} is ${on ? "on" : "off"}`}
          data-testid="rule-on"
        />
        <button
          type="button"
          className={classes.open}
          aria-expanded={open}
          onClick={() => setOpen(!open)}
          data-testid="rule-open"
        >
          <span className={classes.name}>{rule.id}</span>
          <span className={classes.summary}>{rule.summary}</span>
          <span className={classes.marks}>
            {action !== "notify" && <span className={classes.mark}>{action}</span>}
            {count > 0 && <span className={classes.mark}>{count} set</span>}
          </span>
          <span className={classes.chevron} data-open={open}>
            <IconChevron size={14} />
          </span>
        </button>
      </div>
      {open && (
        <form
          className={classes.body}
          onSubmit={(event) => {
            event.preventDefault();
            save(draft);
          }}
        >
          {own.length > 0 && <h3 className={classes.heading}>When it fires</h3>}
          <div className={classes.options}>
            {own.map((option) => (
              <RuleOption
                key={option.name}
                option={option}
                value={draft[option.name] ?? ""}
                problem={problems[option.name]}
                onChange={(value) => edit(option.name, value)}
              />
            ))}
          </div>
          <h3 className={classes.heading}>What happens then</h3>
          <div className={classes.options}>
            {common.map((option) => (
              <RuleOption
                key={option.name}
                option={option}
                value={draft[option.name] ?? ""}
                problem={problems[option.name]}
                onChange={(value) => edit(option.name, value)}
              />
            ))}
          </div>
          {unplaced && (
            <Text size="sm" mt="sm" role="alert" style={{ color: "var(--tw-critical)" }}>
              {unplaced}
            </Text>
          )}
          <div className={classes.actions}>
            <Button
              size="xs"
              type="submit"
              disabled={!changed}
              loading={set.isPending}
              data-testid="rule-save"
            >
              Save
            </Button>
            <Button
              size="xs"
              variant="default"
              disabled={count === 0 && !changed}
              onClick={() => save({})}
              data-testid="rule-reset"
            >
              Back to the defaults
            </Button>
            <Button
              size="xs"
              variant="default"
              loading={backtest.isPending}
              onClick={() => backtest.mutate(settingsOf(rule, draft))}
              data-testid="rule-backtest"
            >
              This rule on your past runs
            </Button>
            <span className={classes.docs}>{rule.docs}</span>
          </div>
          {backtest.error && (
            <Text size="sm" mt="sm" role="alert" style={{ color: "var(--tw-critical)" }}>
              {backtest.error.message}
            </Text>
          )}
          {backtest.data && <RuleBacktest result={backtest.data} />}
        </form>
      )}
    </section>
  );
}
