import { describe, expect, it } from "vitest";
import type { OptionInfo, RuleInfo } from "../api/types";
import { draftOf, isChanged, isOn, problemsOf, rangeText, settingsOf, withRule } from "./rules";

function option(name: string, kind: OptionInfo["kind"], value: unknown, changes: Partial<OptionInfo> = {}) {
  const rest = { meaning: "", least: null, above: null, most: null, choices: [], common: false };
  return { name, kind, default: value, ...rest, ...changes };
}

const RULE: RuleInfo = {
  id: "spike",
  summary: "",
  docs: "",
  actions: ["notify", "halt"],
  options: [
    option("score", "number", 5),
    option("window", "whole number", 50),
    option("enabled", "yes or no", true, { common: true }),
    option("action", "choice", "notify", { common: true, choices: ["notify", "halt"] }),
  ],
};

describe("a draft", () => {
  it("holds what is set, and is empty for defaults", () => {
    expect(draftOf(RULE, { score: 8, enabled: false })).toEqual({
      score: "8",
      window: "",
      enabled: "false",
      action: "",
    });
    expect(draftOf(RULE, undefined).score).toBe("");
  });

  it("becomes settings without the defaults, in their types", () => {
    const draft = { score: " 7.5 ", window: "50", enabled: "false", action: "halt" };
    expect(settingsOf(RULE, draft)).toEqual({ score: 7.5, enabled: false, action: "halt" });
  });

  it("leaves it to the server to refuse what is no number", () => {
    expect(settingsOf(RULE, { score: "much" })).toEqual({ score: "much" });
  });

  it("is changed only when it would save something else", () => {
    const saved = { score: 8 };
    expect(isChanged(RULE, draftOf(RULE, saved), saved)).toBe(false);
    expect(isChanged(RULE, { ...draftOf(RULE, saved), window: "50" }, saved)).toBe(false);
    expect(isChanged(RULE, { ...draftOf(RULE, saved), score: "" }, saved)).toBe(true);
    expect(isChanged(RULE, { ...draftOf(RULE, saved), action: "halt" }, saved)).toBe(true);
  });

  it("tells whether the rule is on", () => {
    expect(isOn(RULE, draftOf(RULE, {}))).toBe(true);
    expect(isOn(RULE, draftOf(RULE, { enabled: false }))).toBe(false);
  });
});

it("replaces one rule's settings, and drops it when nothing is set", () => {
  const all = { spike: { score: 8 }, other: { repeat: 1 } };
  expect(withRule(all, "spike", { score: 9 })).toEqual({ spike: { score: 9 }, other: { repeat: 1 } });
  expect(withRule(all, "spike", {})).toEqual({ other: { repeat: 1 } });
});

it("finds the problems of a rule's fields in a refusal", () => {
  const body = {
    detail: "",
    problems: [
      {
        rule: "spike",
        option: "score",
        detail: "rules.spike: Expected `float` > 0.0 - at `rules.spike.score`",
      },
      { rule: "other", option: "score", detail: "no" },
    ],
  };
  expect(problemsOf(body, "spike")).toEqual({ score: "A number greater than 0 is wanted." });
  const detail = "rules.spike: Expected `int`, got `str` - at `rules.spike.window`";
  const worse = { problems: [{ rule: "spike", option: "window", detail }] };
  expect(problemsOf(worse, "spike")).toEqual({ window: "A whole number is wanted." });
  expect(problemsOf({ detail: "x" }, "spike")).toEqual({});
  expect(problemsOf(null, "spike")).toEqual({});
});

it("says which numbers are taken", () => {
  expect(rangeText({ least: 0, above: null, most: 1 })).toBe("0 to 1");
  expect(rangeText({ least: 1, above: null, most: null })).toBe("1 or more");
  expect(rangeText({ least: null, above: 0, most: null })).toBe("more than 0");
  expect(rangeText({ least: null, above: null, most: null })).toBe("");
});
