import { describe, expect, it } from "vitest";
import { formatBytes, formatCount, formatNumber, formatPercent, fromWire, isNonFinite } from "./numbers";

describe("fromWire", () => {
  it("brings the three values back that JSON does not have", () => {
    expect(fromWire("NaN")).toBeNaN();
    expect(fromWire("Infinity")).toBe(Number.POSITIVE_INFINITY);
    expect(fromWire("-Infinity")).toBe(Number.NEGATIVE_INFINITY);
  });

  it("leaves numbers and absence alone", () => {
    expect(fromWire(0)).toBe(0);
    expect(fromWire(null)).toBeNull();
    expect(fromWire(undefined)).toBeNull();
  });
});

describe("isNonFinite", () => {
  it("does not take absence for a NaN", () => {
    expect(isNonFinite(null)).toBe(false);
    expect(isNonFinite(1)).toBe(false);
    expect(isNonFinite(Number.NaN)).toBe(true);
    expect(isNonFinite(Number.NEGATIVE_INFINITY)).toBe(true);
  });
});

describe("formatNumber", () => {
  it.each([
    [null, "–"],
    [Number.NaN, "NaN"],
    [Number.POSITIVE_INFINITY, "+Inf"],
    [Number.NEGATIVE_INFINITY, "−Inf"],
    [0, "0"],
    [1.34217, "1.342"],
    [-1.34217, "−1.342"],
    [0.02134, "0.0213"],
    [12.345, "12.35"],
    [123.45, "123.5"],
    [0.0003, "3.0e-4"],
    [12480, "12,480"],
    [12480.4, "12,480"],
    [3.2e9, "3.20e9"],
  ])("writes %s as %s", (value, text) => {
    expect(formatNumber(value)).toBe(text);
  });
});

describe("formatBytes", () => {
  it.each([
    [null, "–"],
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1.00 KiB"],
    [812 * 2 ** 20, "812 MiB"],
    [23.44 * 2 ** 30, "23.4 GiB"],
    [1023.9 * 2 ** 20, "1.00 GiB"],
    [-11 * 2 ** 30, "−11.0 GiB"],
    [5000 * 2 ** 40, "5000 TiB"],
    [Number.NaN, "NaN"],
  ])("writes %s as %s", (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });
});

it("formats counts and shares", () => {
  expect(formatCount(1234567)).toBe("1,234,567");
  expect(formatPercent(0.4)).toBe("40 %");
  expect(formatPercent(0.004)).toBe("<1 %");
  expect(formatPercent(0)).toBe("0 %");
  expect(formatPercent(Number.NaN)).toBe("–");
});
