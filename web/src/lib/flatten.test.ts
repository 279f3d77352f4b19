import { describe, expect, it } from "vitest";
import { flatten, searchRows } from "./flatten";

describe("flatten", () => {
  it("names nested values by their path", () => {
    expect(flatten({ lr: 0.0003, fsdp: { xla: false, wrap: { depth: 2 } } })).toEqual([
      { key: "lr", value: "0.0003" },
      { key: "fsdp.xla", value: "False" },
      { key: "fsdp.wrap.depth", value: "2" },
    ]);
  });

  it("shows values as a Python user knows them", () => {
    const values = flatten({ a: null, b: true, c: [], d: {}, e: "", f: [1, "x"], g: 8030261248, h: "1e6" });
    expect(values.map((row) => row.value)).toEqual([
      "None",
      "True",
      "[]",
      "{}",
      "",
      "1, x",
      "8,030,261,248",
      "1e6",
    ]);
  });

  it("says once what is the same everywhere", () => {
    expect(flatten({ devices: ["H100", "H100", "H100"] })).toEqual([{ key: "devices", value: "3 × H100" }]);
  });
});

it("searches keys and values", () => {
  const rows = flatten({ learning_rate: 0.1, scheduler: "cosine", seed: 42 });
  expect(searchRows(rows, "RATE")).toHaveLength(1);
  expect(searchRows(rows, "cosine sched")).toHaveLength(1);
  expect(searchRows(rows, "cosine rate")).toHaveLength(0);
  expect(searchRows(rows, "")).toHaveLength(3);
});
