import { describe, expect, it } from "vitest";
import type { Alert } from "../api/types";
import { alertFacts, isQuiet, silenceText } from "./alerts";

const ALERT: Alert = {
  id: 1,
  rule: "memory_growth",
  severity: "warning",
  state: "firing",
  sentence: "It grows.",
  rank: 1,
  first_step: 10,
  last_step: 20,
  count: 3,
  first_at: 1000,
  last_at: 1100,
  parameters: {},
  key: "cuda:0",
  action: "notify",
  resolved_at: null,
  silenced: false,
  silenced_until: null,
};

describe("what is said of an alert", () => {
  it("names rank, device, steps and how often", () => {
    expect(alertFacts(ALERT, 1102)).toEqual(["rank 1", "cuda:0", "steps 10–20", "3 times", "2 s ago"]);
    expect(
      alertFacts({ ...ALERT, rank: null, key: "", count: 1, first_step: null, last_step: null }, 1102),
    ).toEqual(["2 s ago"]);
  });

  it("says what was done about it", () => {
    expect(alertFacts({ ...ALERT, action: "halt" }, 1102)).toContain("run halted");
    expect(alertFacts({ ...ALERT, action: "halt", state: "pending" }, 1102)).not.toContain("run halted");
  });

  it("says that it is over, and since when", () => {
    const over = { ...ALERT, state: "resolved", resolved_at: 1090 } as const;
    expect(alertFacts(over, 1150)).toContain("over, 1 min ago");
    expect(isQuiet(over)).toBe(true);
  });

  it("says that it is silenced", () => {
    const silenced = { ...ALERT, silenced: true, silenced_until: "Infinity" } as const;
    expect(alertFacts(silenced, 1102)).toContain("silenced");
    expect(isQuiet(silenced)).toBe(true);
    expect(isQuiet(ALERT)).toBe(false);
    expect(silenceText(1200, 1100)).toMatch(/^silenced until /);
  });
});
