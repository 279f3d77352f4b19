import { describe, expect, it } from "vitest";
import { countStates, matchText, readFilter, type State, writeFilter } from "./filter";

const run = (name: string, state: State, sentence = "") => ({
  id: `id-${name}`,
  name,
  project: "demo",
  state,
  nodes: ["gpu-01"],
  sentence,
});
const runs = [run("llama sft", "running"), run("gpt2", "halted", "The loss is NaN"), run("t5", "running")];

describe("the list's filter", () => {
  it("survives the address", () => {
    const filter = { text: "llama 8b", state: "halted", project: "legal" } as const;
    expect(readFilter(writeFilter(filter))).toEqual(filter);
    expect(writeFilter({ text: "", state: null, project: null }).toString()).toBe("");
    expect(readFilter(new URLSearchParams("state=bored"))).toEqual({ text: "", state: null, project: null });
  });

  it("wants every word, anywhere, in any case", () => {
    expect(matchText(runs, "SFT llama")).toHaveLength(1);
    expect(matchText(runs, "nan gpt2")).toHaveLength(1);
    expect(matchText(runs, "gpu-01")).toHaveLength(3);
    expect(matchText(runs, "llama gpt2")).toHaveLength(0);
    expect(matchText(runs, "  ")).toHaveLength(3);
  });

  it("counts states", () => {
    expect(countStates(runs)).toEqual({
      running: 2,
      late: 0,
      finished: 0,
      halted: 1,
      failed: 0,
      died: 0,
      lost: 0,
    });
  });
});
