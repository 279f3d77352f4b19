import { describe, expect, it } from "vitest";
import { formatAge, formatDuration, formatMoment, formatRough } from "./time";

describe("formatDuration", () => {
  it.each([
    [0, "0 s"],
    [0.0031, "3.1 ms"],
    [0.18, "180 ms"],
    [1.234, "1.23 s"],
    [42.4, "42 s"],
    [60, "1 min"],
    [725, "12 min 5 s"],
    [3 * 3600 + 20 * 60 + 59, "3 h 20 min"],
    [2 * 86400 + 4 * 3600, "2 d 4 h"],
    [-3, "0 s"],
    [Number.NaN, "–"],
  ])("writes %s s as %s", (seconds, text) => {
    expect(formatDuration(seconds)).toBe(text);
  });
});

it("gives a guess no more digits than it is good for", () => {
  expect(formatRough(3)).toBe("5 s");
  expect(formatRough(61)).toBe("65 s");
  expect(formatRough(18 * 60 + 20)).toBe("18 min");
  expect(formatRough(2 * 3600 + 30)).toBe("2 h 1 min");
});

describe("formatAge", () => {
  it.each([
    [0, "now"],
    [-5, "now"],
    [42, "42 s ago"],
    [61, "1 min ago"],
    [5 * 3600, "5 h ago"],
    [47 * 3600, "47 h ago"],
    [49 * 3600, "2 d ago"],
  ])("says of %s s: %s", (age, text) => {
    expect(formatAge(1000, 1000 + age)).toBe(text);
  });
});

it("names the day of a moment only when it is another day", () => {
  const noon = new Date(2026, 2, 12, 12, 0, 0).getTime() / 1000;
  expect(formatMoment(noon, noon + 60, "en-GB")).toBe("12:00:00");
  expect(formatMoment(noon, noon + 2 * 86400, "en-GB")).toContain("12 Mar");
  expect(formatMoment(noon, noon + 2 * 86400, "en-GB")).not.toContain("2026");
  expect(formatMoment(noon, noon + 366 * 86400, "en-GB")).toContain("12 Mar 2026");
});
