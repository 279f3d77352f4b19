import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { gate } from "../lib/pace";
import type { Axis, Range } from "../lib/view";
import { client, unwrap } from "./client";
import { keys } from "./queries";

/**
 * Figures are asked for in the order of the page, few at a time: the first is there sooner, and a browser's six
 * connections are not all taken when a number or a click needs one.
 */
const few = gate(2);

export interface ChartRequest {
  run: string;
  chart: string;
  axis: Axis;
  range: Range | null;
  /** Of the plot, in pixels. */
  width: number;
  theme: "light" | "dark";
  /** Only this rank's readings; all ranks' without it. */
  rank?: number | null;
}

/**
 * A chart's figure, drawn by the server for this stretch and width. While another stretch is fetched the old figure
 * stays.
 */
export function useChart(request: ChartRequest, enabled: boolean) {
  const { run, chart, axis, range, width, theme, rank = null } = request;
  return useQuery({
    queryKey: [...keys.charts(run), chart, axis, range?.from ?? null, range?.to ?? null, width, theme, rank],
    queryFn: ({ signal }) =>
      few(() =>
        unwrap(
          client.GET("/api/runs/{run}/charts/{chart}", {
            params: {
              path: { run, chart },
              query: {
                x: axis,
                width,
                theme,
                ...(range && { from: range.from, to: range.to }),
                ...(rank !== null && { rank }),
              },
            },
            signal,
          }),
        ),
      ),
    enabled: enabled && width > 0,
    placeholderData: keepPreviousData,
    gcTime: 60_000,
    // Figures are large and always replaced as a whole.
    structuralSharing: false,
  });
}
