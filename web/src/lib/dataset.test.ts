import { describe, expect, it } from "vitest";
import { lengthsOf, withoutHistogram } from "./dataset";

const train = {
  kind: "Dataset",
  samples: 30,
  read: 30,
  complete: true,
  column: "input_ids",
  lengths: { min: 3, p50: 11, p90: 18, p99: 25, max: 27, mean: 12.4 },
  histogram: { edges: [0, 10, 20, 30], counts: [10, 15, 5] },
};

describe("lengths of samples", () => {
  it("are read from the description", () => {
    expect(lengthsOf({ train })).toEqual({
      edges: [0, 10, 20, 30],
      counts: [10, 15, 5],
      column: "input_ids",
      read: 30,
      complete: true,
      marks: [
        { name: "shortest", value: 3 },
        { name: "mean", value: 12.4 },
        { name: "median", value: 11 },
        { name: "90 %", value: 18 },
        { name: "99 %", value: 25 },
        { name: "longest", value: 27 },
      ],
    });
  });

  it.each([
    {},
    { train: null },
    { train: { samples: 3 } },
    { train: { histogram: { edges: [0, 1], counts: [1, 2] } } },
    { train: { histogram: { edges: [0, 1], counts: [0] } } },
    { train: { histogram: { edges: [0, "x"], counts: [1] } } },
  ])("are not made up: %j", (dataset) => {
    expect(lengthsOf(dataset)).toBeNull();
  });

  it("are not written out twice", () => {
    expect(withoutHistogram({ train, eval: { samples: 2 } })).toEqual({
      train: { kind: "Dataset", samples: 30, read: 30, complete: true, column: "input_ids" },
      eval: { samples: 2 },
    });
    expect(withoutHistogram({ eval: 1 })).toEqual({ eval: 1 });
  });
});
