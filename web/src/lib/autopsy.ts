/** Which autopsy explains what, and how its parts are written. */
import type { Alert, Autopsy, RunDetail, TensorInfo } from "../api/types";
import { formatCount, formatNumber, fromWire, type WireNumber } from "./numbers";

/** The autopsy of a step on a rank; of the same step on another rank, where this one's was not needed. */
export function autopsyOf(
  autopsies: readonly Autopsy[],
  where: { step: number; rank: number },
): Autopsy | null {
  const same = autopsies.filter((one) => one.step === where.step);
  return same.find((one) => one.rank === where.rank) ?? same[0] ?? null;
}

/** The newest autopsy of the steps in which an alert's rule matched. */
export function autopsyOfAlert(
  autopsies: readonly Autopsy[],
  alert: Pick<Alert, "rule" | "rank" | "first_step" | "last_step">,
): Autopsy | null {
  const { rule, rank, first_step, last_step } = alert;
  if (!rule.startsWith("nonfinite_") || first_step === null || last_step === null) return null;
  return (
    autopsies.find(
      (one) => first_step <= one.step && one.step <= last_step && (rank === null || one.rank === rank),
    ) ?? null
  );
}

/** The autopsy that says why a run was halted. */
export function autopsyOfEnd(run: Pick<RunDetail, "state" | "autopsies">): Autopsy | null {
  return run.state === "halted" ? (run.autopsies[0] ?? null) : null;
}

/** "4 × 128"; a scalar has no sizes. */
export function shapeText(shape: readonly number[]): string {
  return shape.length === 0 ? "scalar" : shape.map(formatCount).join(" × ");
}

/** "0 to 128,255"; "no finite value" where there is none. */
export function rangeText(tensor: Pick<TensorInfo, "low" | "high">): string {
  const low = exact(tensor.low);
  const high = exact(tensor.high);
  if (low === null || high === null) return "no finite value";
  return low === high ? `all ${low}` : `${low} to ${high}`;
}

/** Token ids and labels are whole numbers of which every digit counts. */
function exact(value: WireNumber | null): string | null {
  const number = fromWire(value);
  if (number === null) return null;
  return Number.isInteger(number) && Math.abs(number) < 2 ** 53 ? formatCount(number) : formatNumber(number);
}

/** Whether something in a tensor is not finite. */
export function isBad(tensor: Pick<TensorInfo, "nan" | "inf">): boolean {
  return tensor.nan > 0 || tensor.inf > 0;
}

/** "3 NaN, 217 Inf"; empty when all is finite. */
export function badText(tensor: Pick<TensorInfo, "nan" | "inf">): string {
  return [
    tensor.nan > 0 ? `${formatCount(tensor.nan)} NaN` : "",
    tensor.inf > 0 ? `${formatCount(tensor.inf)} Inf` : "",
  ]
    .filter(Boolean)
    .join(", ");
}
