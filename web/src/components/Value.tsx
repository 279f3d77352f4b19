import { formatNumber, fromWire, isNonFinite, type WireNumber } from "../lib/numbers";

/** A reading; NaN and Infinity in red, because they are never just a number. */
export function Value({
  of,
  format = formatNumber,
}: {
  of: WireNumber | null;
  format?: (value: number) => string;
}) {
  const value = fromWire(of);
  if (value === null) return <span className="muted">–</span>;
  return isNonFinite(value) ? <span className="bad">{formatNumber(value)}</span> : format(value);
}
