import { describe, expect, it } from "vitest";
import type { Channel } from "../api/types";
import { changeText, draftOf, newKey, stateOf, wishOf } from "./channels";

const CHANNEL: Channel = {
  id: 7,
  project: "",
  name: "on call",
  kind: "webhook",
  target: "https://example.org/…",
  has_key: true,
  least: "critical",
  rules: ["loss_*", "nonfinite_loss"],
  send_resolved: false,
  language: "zh",
  quiet: { zone: "Asia/Shanghai", start: "23:00", end: "08:00" },
  digest: { most: 3, seconds: 90 },
  enabled: true,
  disabled_reason: "",
  waiting: 0,
  created_at: 1,
  changed_at: 1,
};

describe("the form of a channel", () => {
  it("comes back as it was, without what is secret", () => {
    const wish = wishOf(draftOf(CHANNEL, "UTC"));
    expect(wish).toEqual({
      name: "on call",
      kind: "webhook",
      url: null,
      key: null,
      least: "critical",
      rules: ["loss_*", "nonfinite_loss"],
      send_resolved: false,
      language: "zh",
      quiet: { zone: "Asia/Shanghai", start: "23:00", end: "08:00" },
      digest: { most: 3, seconds: 90 },
      enabled: true,
    });
  });

  it("begins with what most people want", () => {
    const draft = draftOf(null, "Europe/Berlin");
    expect(draft.zone).toBe("Europe/Berlin");
    expect(wishOf({ ...draft, name: " a ", url: " https://x ", rules: "a, b\nc" })).toMatchObject({
      name: "a",
      url: "https://x",
      rules: ["a", "b", "c"],
      quiet: null,
      digest: { most: 10, seconds: 300 },
    });
  });

  it("sends a key only with a webhook", () => {
    expect(wishOf({ ...draftOf(null, "UTC"), key: "secret" }).key).toBeNull();
    expect(wishOf({ ...draftOf(null, "UTC"), kind: "webhook", key: "secret" }).key).toBe("secret");
  });

  it("makes keys that differ", () => {
    expect(newKey()).toMatch(/^[0-9a-f]{64}$/);
    expect(newKey()).not.toBe(newKey());
  });
});

describe("a delivery", () => {
  it("says what it was about and how it stands", () => {
    expect(changeText({ change: "resolved", rule: "loss_spike" })).toBe("loss_spike: over");
    expect(changeText({ change: "test", rule: "" })).toBe("test");
    expect(stateOf({ state: "waiting", attempts: [] }).text).toBe("waits");
    expect(
      stateOf({ state: "waiting", attempts: [{ at: 1, seconds: 1, status: 500, error: "" }] }).text,
    ).toBe("tried, waits");
    expect(stateOf({ state: "failed", attempts: [] }).tone).toBe("bad");
  });
});
