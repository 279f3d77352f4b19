import { describe, expect, it } from "vitest";
import { sparkline } from "./sparkline";

const { NaN: nan, POSITIVE_INFINITY: inf, NEGATIVE_INFINITY: minus } = Number;

describe("sparkline", () => {
  it("spans the whole box, high values on top", () => {
    const { line, marks, end } = sparkline([0, 10], [1, 3], 100, 20);
    expect(line).toBe("M2.5 17.5L97.5 2.5");
    expect(marks).toEqual([]);
    expect(end).toEqual({ x: 97.5, y: 2.5 });
  });

  it("breaks the line at a NaN and marks it where it happened", () => {
    const { line, marks } = sparkline([0, 5, 10, 15], [1, nan, 2, 3], 100, 20);
    expect(line.match(/M/g)).toHaveLength(2);
    expect(marks).toEqual([{ x: 34.2, edge: "top" }]);
  });

  it("marks minus infinity at the bottom and infinity at the top", () => {
    const { marks } = sparkline([0, 1, 2], [inf, 1, minus], 100, 20);
    expect(marks.map((mark) => mark.edge)).toEqual(["top", "bottom"]);
  });

  it("is not scaled by what is not finite", () => {
    const { line } = sparkline([0, 1, 2], [1, 2, inf], 100, 20);
    expect(line).not.toMatch(/NaN|Infinity/);
    expect(line).toContain("M2.5 17.5");
  });

  it("draws a single finite point between two NaN as a dot", () => {
    expect(sparkline([0, 1, 2], [nan, 1, nan], 100, 20).line).toBe("M50 10h0");
  });

  it("has no end point when the last value is a NaN", () => {
    expect(sparkline([0, 1], [1, nan], 100, 20).end).toBeNull();
  });

  it("draws constant and single values in the middle", () => {
    expect(sparkline([0, 1], [2, 2], 100, 20).line).toBe("M2.5 10L97.5 10");
    expect(sparkline([7], [2], 100, 20).end).toEqual({ x: 50, y: 10 });
  });

  it("draws nothing from nothing, and only marks when nothing is finite", () => {
    expect(sparkline([], [], 100, 20)).toEqual({ line: "", marks: [], end: null });
    const { line, marks } = sparkline([0, 1], [nan, nan], 100, 20);
    expect(line).toBe("");
    expect(marks).toHaveLength(2);
  });
});
