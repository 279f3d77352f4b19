/** A rule's options as they are edited: texts, until they are saved. */
import type { OptionInfo, OptionValue, RuleInfo } from "../api/types";

/** Option name to what its field holds; an empty text stands for the default. */
export type Draft = Record<string, string>;
export type RuleSettings = Record<string, Record<string, OptionValue>>;

/** Fills the fields of a rule from what the project sets. */
export function draftOf(rule: RuleInfo, set: Record<string, unknown> | undefined): Draft {
  return Object.fromEntries(
    rule.options.map(({ name }) => {
      const value = set?.[name];
      return [name, value === undefined || value === null ? "" : String(value)];
    }),
  );
}

/** Returns the options that the fields set. What is no number stays text, and the server says what it should be. */
export function settingsOf(rule: RuleInfo, draft: Draft): Record<string, OptionValue> {
  const set: Record<string, OptionValue> = {};
  for (const option of rule.options) {
    const text = (draft[option.name] ?? "").trim();
    if (text === "") continue;
    const value = typed(option, text);
    if (value !== option.default) set[option.name] = value;
  }
  return set;
}

function typed(option: OptionInfo, text: string): OptionValue {
  if (option.kind === "yes or no") return text === "true";
  if (option.kind === "number" || option.kind === "whole number") {
    const number = Number(text);
    return Number.isFinite(number) ? number : text;
  }
  return text;
}

/** Whether the fields say something else than what is saved. */
export function isChanged(rule: RuleInfo, draft: Draft, saved: Record<string, unknown> | undefined): boolean {
  const now = settingsOf(rule, draft);
  const before = settingsOf(rule, draftOf(rule, saved));
  const names = new Set([...Object.keys(now), ...Object.keys(before)]);
  return [...names].some((name) => now[name] !== before[name]);
}

/** Returns the project's settings with one rule's replaced. */
export function withRule(all: RuleSettings, rule: string, set: Record<string, OptionValue>): RuleSettings {
  const { [rule]: _, ...others } = all;
  return Object.keys(set).length > 0 ? { ...others, [rule]: set } : others;
}

/** Reads option to problem, of one rule, out of a refusal. */
export function problemsOf(body: unknown, rule: string): Record<string, string> {
  if (typeof body !== "object" || body === null || !("problems" in body) || !Array.isArray(body.problems))
    return {};
  const found: Record<string, string> = {};
  for (const one of body.problems) if (one.rule === rule) found[one.option] = shortened(one.detail, one);
  return found;
}

/** The field stands beside it, so its name need not be said. */
function shortened(detail: string, { rule, option }: { rule: string; option: string }): string {
  const text = detail
    .replace(` - at \`rules.${rule}.${option}\``, "")
    .replace(`rules.${rule}: `, "")
    .replaceAll("`", "")
    .replace(/^Expected (float|int)(?: (<=|>=|>) (\S+))?(?:, got .*)?$/, (_all, kind, sign, limit) => {
      const what = kind === "int" ? "A whole number" : "A number";
      return `${what} ${sign ? `${LIMITS[sign]} ${Number(limit)} ` : ""}is wanted.`;
    });
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const LIMITS: Record<string, string> = { "<=": "of at most", ">=": "of at least", ">": "greater than" };

/** Says which numbers an option takes. */
export function rangeText({ least, above, most }: Pick<OptionInfo, "least" | "above" | "most">): string {
  if (least !== null && most !== null) return `${least} to ${most}`;
  if (least !== null) return `${least} or more`;
  if (above !== null) return `more than ${above}`;
  return most === null ? "" : `at most ${most}`;
}

/** Whether a rule is on, as far as the fields say. */
export function isOn(rule: RuleInfo, draft: Draft): boolean {
  const text = draft.enabled || String(rule.options.find(({ name }) => name === "enabled")?.default ?? true);
  return text === "true";
}
