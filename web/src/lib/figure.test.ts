import { describe, expect, it } from "vitest";
import { type Figure, readZoom, scaleOf, withView } from "./figure";

function figure(layout: Record<string, unknown> = {}): Figure {
  return {
    data: [{ x: { dtype: "i4", bdata: "AQAAAA==" } }],
    layout: {
      uirevision: "trainwatch",
      font: { family: "Other", size: 12 },
      annotations: [{ text: "family", font: { family: "Other" } }],
      xaxis: { autorange: true, autorangeoptions: { minallowed: 0 }, tickfont: { family: "Other" } },
      yaxis: { type: "log" },
      meta: { axis: "time", origin: 1000, divisor: 1024 },
      ...layout,
    },
  };
}

const axes = (shown: Figure) => {
  const { xaxis, yaxis } = shown.layout as Record<string, Record<string, unknown>>;
  return { x: xaxis ?? {}, y: yaxis ?? {} };
};

describe("withView", () => {
  it("leaves an unzoomed figure's ranges to Plotly", () => {
    const { x, y } = axes(withView(figure(), "time", null, null, "Page"));
    expect(x).toMatchObject({ autorange: true, autorangeoptions: { minallowed: 0 } });
    expect(y).not.toHaveProperty("range");
  });

  it("zooms an old figure at once, in its own coordinates", () => {
    const { x } = axes(withView(figure(), "time", { from: 1010, to: 1020 }, null, "Page"));
    expect(x).toMatchObject({ autorange: false, range: [10, 20] });
    expect(x).not.toHaveProperty("autorangeoptions");
  });

  it("does not take steps for seconds while the other axis is on its way", () => {
    const { x } = axes(withView(figure(), "step", { from: 10, to: 20 }, null, "Page"));
    expect(x).not.toHaveProperty("range");
  });

  it("keeps a chosen y range, but not on another scale", () => {
    const zoom = { low: 1, high: 2, scale: scaleOf(figure()) };
    expect(axes(withView(figure(), "time", null, zoom, "Page")).y.range).toEqual([1, 2]);
    const linear = figure({ yaxis: { type: "linear" } });
    expect(axes(withView(linear, "time", null, zoom, "Page")).y).not.toHaveProperty("range");
  });

  it("tells Plotly to forget its own ranges when the view changes, and not what is hidden in the legend", () => {
    const one = withView(figure(), "time", null, null, "Page");
    const two = withView(figure(), "time", { from: 1010, to: 1020 }, null, "Page");
    expect(axes(one).x.uirevision).not.toBe(axes(two).x.uirevision);
    expect(one.layout.uirevision).toBe(two.layout.uirevision);
  });

  it("sets the page's font everywhere and touches no data", () => {
    const source = figure();
    const shown = withView(source, "time", null, null, "Page");
    expect(JSON.stringify(shown.layout)).not.toContain("Other");
    expect(shown.layout.annotations).toEqual([{ text: "family", font: { family: "Page" } }]);
    expect(shown.data).toBe(source.data);
    expect(source).toEqual(figure());
  });
});

describe("readZoom", () => {
  it("reads both ways in which Plotly says a range", () => {
    const expected = { x: { from: 1010, to: 1020 }, y: null };
    expect(readZoom({ "xaxis.range[0]": 10, "xaxis.range[1]": 20 }, 1000)).toEqual(expected);
    expect(readZoom({ "xaxis.range": [20, 10] }, 1000)).toEqual(expected);
  });

  it("reads y ranges and resets", () => {
    expect(readZoom({ "yaxis.range[0]": 1, "yaxis.range[1]": 2 }, 0)).toEqual({
      x: null,
      y: { low: 1, high: 2 },
    });
    expect(readZoom({ "xaxis.autorange": true, "yaxis.autorange": true }, 0)).toEqual({
      x: "reset",
      y: "reset",
    });
  });

  it("ignores everything else", () => {
    expect(readZoom({ autosize: true }, 0)).toEqual({ x: null, y: null });
    expect(readZoom({ "xaxis.range[0]": 5, "xaxis.range[1]": 5 }, 0)).toEqual({ x: null, y: null });
    expect(readZoom({ "xaxis.range[0]": "2026-01-01", "xaxis.range[1]": "2026-01-02" }, 0).x).toBeNull();
  });
});
