import { describe, expect, it } from "vitest";
import { endSentence, placeOf, progress, remainingSeconds, stepsText, worstLast } from "./run";

it("knows progress only with an end", () => {
  expect(progress({ step: 50, max_steps: 200 })).toBe(0.25);
  expect(progress({ step: 250, max_steps: 200 })).toBe(1);
  expect(progress({ step: 50, max_steps: 0 })).toBeNull();
});

describe("remainingSeconds", () => {
  const run = {
    state: "running" as const,
    step: 101,
    max_steps: 201,
    started_at: 1000,
    last_event_at: 1200,
    sparkline: { step: [1, 50, 101] },
  };

  it("goes by the pace so far", () => {
    expect(remainingSeconds(run)).toBe(200);
  });

  it("does not count the steps from before a run was resumed", () => {
    expect(remainingSeconds({ ...run, sparkline: { step: [81, 101] } })).toBe(1000);
  });

  it("does not guess for an ended run, from nothing, or without an end", () => {
    expect(remainingSeconds({ ...run, state: "halted" })).toBeNull();
    expect(remainingSeconds({ ...run, step: 3 })).toBeNull();
    expect(remainingSeconds({ ...run, sparkline: { step: [] } })).toBeNull();
    expect(remainingSeconds({ ...run, max_steps: 0 })).toBeNull();
  });
});

describe("worstLast", () => {
  const one = (metric: string, rank: number, last: number | "NaN" | "Infinity") => ({
    metric,
    rank,
    last,
    last_step: 7,
  });

  it("takes the largest over the ranks", () => {
    const series = [one("t", 0, 1), one("t", 1, 3), one("t", 2, 2), one("u", 3, 9)];
    expect(worstLast(series, "t")).toEqual({ value: 3, step: 7, rank: 1, ranks: 3 });
  });

  it("prefers a NaN to any number, in any order", () => {
    for (const series of [
      [one("t", 0, "NaN"), one("t", 1, 3)],
      [one("t", 1, 3), one("t", 0, "NaN")],
    ]) {
      expect(worstLast(series, "t")?.value).toBeNaN();
      expect(worstLast(series, "t")?.rank).toBe(0);
    }
  });

  it("has nothing to say about what is not recorded", () => {
    expect(worstLast([], "t")).toBeNull();
  });
});

it("says where a run is", () => {
  expect(placeOf({ world_size: 1, nodes: ["laptop"] })).toBe("1 rank on laptop");
  expect(placeOf({ world_size: 8, nodes: ["a", "b"] })).toBe("8 ranks on 2 nodes");
  expect(placeOf({ world_size: 2, nodes: [] })).toBe("2 ranks");
});

it("names stretches of steps", () => {
  expect(stepsText(180, 182)).toBe("steps 180–182");
  expect(stepsText(180, 180)).toBe("step 180");
  expect(stepsText(null, 5)).toBe("step 5");
  expect(stepsText(null, null)).toBe("");
});

describe("endSentence", () => {
  const end = {
    sentence: "Halted: the loss is NaN. Resume from out/checkpoint-7.",
    resume_from: "out/checkpoint-7",
  };

  it("leaves out the checkpoint, which is shown apart", () => {
    expect(endSentence({ state: "halted", sentence: "", end })).toBe("Halted: the loss is NaN.");
  });

  it("is the run's own where nothing said how it ended", () => {
    expect(endSentence({ state: "lost", sentence: "Nothing was heard.", end: null })).toBe(
      "Nothing was heard.",
    );
  });

  it("is empty while all is well", () => {
    expect(endSentence({ state: "running", sentence: "The loss is NaN.", end: null })).toBe("");
    expect(endSentence({ state: "finished", sentence: "", end: null })).toBe("");
  });
});
