import { formatCount } from "./numbers";

/** Nested settings as rows of a searchable table. */

export interface Row {
  key: string;
  value: string;
}

export function flatten(values: Record<string, unknown>, prefix = ""): Row[] {
  return Object.entries(values).flatMap(([name, value]) => {
    const key = prefix ? `${prefix}.${name}` : name;
    if (isRecord(value) && Object.keys(value).length > 0) return flatten(value, key);
    return [{ key, value: show(value) }];
  });
}

/** Rows whose key or value contains every word. */
export function searchRows(rows: readonly Row[], text: string): Row[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const hay = `${row.key}\n${row.value}`.toLowerCase();
    return words.every((word) => hay.includes(word));
  });
}

function show(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return list(value.map(show));
  if (typeof value === "number")
    return Number.isInteger(value) && value >= 1e6 ? formatCount(value) : String(value);
  return JSON.stringify(value);
}

/** "4 × NVIDIA H100" rather than the same name four times. */
function list(items: string[]): string {
  const [first] = items;
  if (first === undefined) return "[]";
  return items.length > 1 && items.every((item) => item === first)
    ? `${items.length} × ${first}`
    : items.join(", ");
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
