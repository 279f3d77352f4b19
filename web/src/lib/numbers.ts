/** JSON has no NaN and no Infinity; the API sends these three strings in their place. */
export type WireNumber = number | "NaN" | "Infinity" | "-Infinity";

/** The one place where a number of the API becomes a JavaScript number; null and undefined stay "no value". */
export function fromWire(value: WireNumber | null | undefined): number | null {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  return value === "NaN"
    ? Number.NaN
    : value === "Infinity"
      ? Number.POSITIVE_INFINITY
      : Number.NEGATIVE_INFINITY;
}

/** Tells whether there is a value and it is NaN, Infinity or -Infinity. */
export function isNonFinite(value: number | null): boolean {
  return value !== null && !Number.isFinite(value);
}

const MISSING = "–";
const MINUS = "−";

/** A reading in about four significant digits: 1.342, 0.0213, 3.0e-4, 12,480, NaN, +Inf, −Inf. */
export function formatNumber(value: number | null): string {
  if (value === null) return MISSING;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : `${MINUS}Inf`;
  const size = Math.abs(value);
  const sign = value < 0 ? MINUS : "";
  if (size === 0) return "0";
  if (size < 0.001 || size >= 1e7) return sign + size.toExponential(size >= 1e7 ? 2 : 1).replace("e+", "e");
  if (Number.isInteger(value)) return sign + grouped(size);
  if (size >= 1000) return sign + grouped(Math.round(size));
  return sign + size.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 4);
}

/** Whole numbers with thousands separators: 12,480. */
export function formatCount(value: number): string {
  return (value < 0 ? MINUS : "") + grouped(Math.round(Math.abs(value)));
}

function grouped(value: number): string {
  return value.toLocaleString("en-US");
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

/** Bytes with a binary unit: 812 MiB, 23.4 GiB. */
export function formatBytes(bytes: number | null): string {
  if (bytes === null) return MISSING;
  if (!Number.isFinite(bytes)) return formatNumber(bytes);
  let size = Math.abs(bytes);
  let unit = 0;
  while (size >= 1023.5 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${bytes < 0 ? MINUS : ""}${size.toFixed(digits)} ${UNITS[unit] ?? "B"}`;
}

/** A share of a whole as a percentage without decimals, "<1 %" when it is nearly nothing. */
export function formatPercent(share: number): string {
  if (!Number.isFinite(share)) return MISSING;
  if (share > 0 && share < 0.01) return "<1 %";
  return `${Math.round(share * 100)} %`;
}
