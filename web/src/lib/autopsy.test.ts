import { describe, expect, it } from "vitest";
import type { Autopsy } from "../api/types";
import { autopsyOf, autopsyOfAlert, autopsyOfEnd, badText, rangeText, shapeText } from "./autopsy";

const autopsy = (id: number, step: number, rank: number) => ({ id, step, rank }) as Autopsy;
const all = [autopsy(3, 50, 1), autopsy(2, 40, 0), autopsy(1, 40, 1)];

describe("which autopsy explains what", () => {
  it("prefers the rank's own", () => {
    expect(autopsyOf(all, { step: 40, rank: 1 })?.id).toBe(1);
    expect(autopsyOf(all, { step: 50, rank: 0 })?.id).toBe(3);
    expect(autopsyOf(all, { step: 41, rank: 0 })).toBeNull();
  });

  it("finds an alert's by its steps and rank", () => {
    const alert = { rule: "nonfinite_loss", rank: 1, first_step: 38, last_step: 45 };
    expect(autopsyOfAlert(all, alert)?.id).toBe(1);
    expect(autopsyOfAlert(all, { ...alert, rank: null })?.id).toBe(2);
    expect(autopsyOfAlert(all, { ...alert, rank: 7 })).toBeNull();
    expect(autopsyOfAlert(all, { ...alert, rule: "process_gone" })).toBeNull();
    expect(autopsyOfAlert(all, { ...alert, first_step: null })).toBeNull();
  });

  it("explains a halt, and no other end", () => {
    expect(autopsyOfEnd({ state: "halted", autopsies: all })?.id).toBe(3);
    expect(autopsyOfEnd({ state: "halted", autopsies: [] })).toBeNull();
    expect(autopsyOfEnd({ state: "failed", autopsies: all })).toBeNull();
  });
});

describe("a tensor in words", () => {
  it("names its sizes", () => {
    expect(shapeText([4, 1280])).toBe("4 × 1,280");
    expect(shapeText([])).toBe("scalar");
  });

  it("keeps every digit of ids and labels", () => {
    expect(rangeText({ low: 0, high: 151_643_001 })).toBe("0 to 151,643,001");
    expect(rangeText({ low: -100, high: -100 })).toBe("all −100");
    expect(rangeText({ low: -0.278, high: 61_824.5 })).toBe("−0.278 to 61,825");
    expect(rangeText({ low: null, high: null })).toBe("no finite value");
  });

  it("counts what is not finite", () => {
    expect(badText({ nan: 3, inf: 2170 })).toBe("3 NaN, 2,170 Inf");
    expect(badText({ nan: 0, inf: 0 })).toBe("");
  });
});
