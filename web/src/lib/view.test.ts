import { describe, expect, it } from "vitest";
import { readView, withAxis, writeView } from "./view";

const read = (query: string) => readView(new URLSearchParams(query));

describe("the view in the address", () => {
  it("has defaults", () => {
    expect(read("")).toEqual({ axis: "step", range: null, tab: "charts", autopsy: null, other: null });
  });

  it.each([
    "",
    "x=time",
    "from=10&to=20.5",
    "x=time&from=1795233616.5&to=1795233716&tab=ranks",
    "tab=autopsy&autopsy=3",
  ])("survives writing and reading: %s", (query) => {
    expect(writeView(new URLSearchParams(), read(query)).toString()).toBe(query);
  });

  it("takes no nonsense", () => {
    expect(read("from=20&to=10").range).toBeNull();
    expect(read("from=a&to=10").range).toBeNull();
    expect(read("from=&to=10").range).toBeNull();
    expect(read("from=1").range).toBeNull();
    expect(read("from=0&to=Infinity").range).toBeNull();
    expect(read("tab=nope&x=epoch&autopsy=a")).toEqual({
      axis: "step",
      range: null,
      tab: "charts",
      autopsy: null,
      other: null,
    });
  });

  it("leaves alone what it does not know", () => {
    const next = writeView(new URLSearchParams("keep=1&x=time"), read(""));
    expect(next.toString()).toBe("keep=1");
  });

  it("forgets the autopsy when another tab is opened", () => {
    const next = writeView(new URLSearchParams("tab=autopsy&autopsy=3"), {
      ...read("autopsy=3"),
      tab: "ranks",
    });
    expect(next.toString()).toBe("tab=ranks");
  });

  it("forgets a range of steps when the axis becomes time", () => {
    const view = read("from=10&to=20");
    expect(withAxis(view, "time")).toEqual({
      axis: "time",
      range: null,
      tab: "charts",
      autopsy: null,
      other: null,
    });
    expect(withAxis(view, "step")).toBe(view);
  });
});
