import type { Headroom } from "../api/types";
import { formatBytes, formatPercent } from "../lib/numbers";
import { Bar } from "./Bar";
import classes from "./HeadroomBar.module.css";

/** The memory that the fullest device has left. The bar shows what is in use. */
export function HeadroomBar({ headroom, dim = false }: { headroom: Headroom | null; dim?: boolean }) {
  if (headroom === null || headroom.capacity <= 0) return <span className="muted">–</span>;
  // More than the capacity can be in use: in swap, or in unified memory.
  const bytes = Math.max(0, headroom.bytes);
  const free = bytes / headroom.capacity;
  const tone = free < 0.05 ? "critical" : free < 0.12 ? "warning" : dim ? "quiet" : "accent";
  const where = headroom.rank === null ? headroom.device : `${headroom.device}, rank ${headroom.rank}`;
  return (
    <div title={`${formatBytes(bytes)} of ${formatBytes(headroom.capacity)} free on ${where}`}>
      <div className={classes.line}>
        <span>{formatBytes(bytes)} free</span>
        <span className="muted">{formatPercent(free)}</span>
      </div>
      <Bar share={1 - free} label={`Memory in use on ${where}`} tone={tone} />
    </div>
  );
}
