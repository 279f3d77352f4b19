import { NativeSelect, SegmentedControl } from "@mantine/core";
import { useState } from "react";
import type { ChartInfo } from "../api/types";
import type { Range, View } from "../lib/view";
import { ChartPanel } from "./ChartPanel";

const NAMES: Record<string, string> = {
  layers: "Norm",
  "layers/zeros": "Zeros",
  "layers/updates": "Update",
};

interface Props {
  run: string;
  /** One for each quantity that is known of the layers. */
  charts: readonly ChartInfo[];
  ranks: readonly number[];
  view: View;
  onRange: (range: Range | null) => void;
}

/** The heat map of the layers: one quantity at a time, of one rank or the largest of all. */
export function LayersPanel({ run, charts, ranks, view, onRange }: Props) {
  const [wanted, setWanted] = useState(charts[0]?.id);
  const [rank, setRank] = useState<number | null>(null);
  const chart = charts.find((one) => one.id === wanted) ?? charts[0];
  if (!chart) return null;
  const tools = (
    <>
      {ranks.length > 1 && (
        <NativeSelect
          size="xs"
          aria-label="Whose gradients"
          data-testid="layers-rank"
          value={rank === null ? "" : String(rank)}
          onChange={(event) => setRank(event.currentTarget.value ? Number(event.currentTarget.value) : null)}
          data={[
            { value: "", label: "Largest of all ranks" },
            ...ranks.map((one) => ({ value: String(one), label: `Rank ${one}` })),
          ]}
        />
      )}
      {charts.length > 1 && (
        <SegmentedControl
          size="xs"
          aria-label="What is shown of each layer"
          data-testid="layers-quantity"
          value={chart.id}
          onChange={setWanted}
          data={charts.map((one) => ({ value: one.id, label: NAMES[one.id] ?? one.title }))}
        />
      )}
    </>
  );
  return (
    <ChartPanel run={run} chart={chart} view={view} size="full" rank={rank} onRange={onRange} tools={tools} />
  );
}
