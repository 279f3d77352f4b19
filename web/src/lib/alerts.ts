/** What is said of an alert beside its sentence. */
import type { Alert } from "../api/types";
import { formatCount } from "./numbers";
import { stepsText } from "./run";
import { formatAge, formatMoment } from "./time";

/** Whether an alert wants no attention: it is over, or silenced. */
export function isQuiet(alert: Pick<Alert, "state" | "silenced">): boolean {
  return alert.state === "resolved" || alert.silenced;
}

const ACTIONS: Partial<Record<Alert["action"], string>> = {
  checkpoint: "checkpoint saved",
  halt: "run halted",
};

/** Rank, device, steps, how often, what was done, and how it stands. */
export function alertFacts(alert: Alert, now: number): string[] {
  return [
    alert.rank === null ? "" : `rank ${alert.rank}`,
    alert.key,
    stepsText(alert.first_step, alert.last_step),
    alert.count > 1 ? `${formatCount(alert.count)} times` : "",
    alert.state === "pending" ? "" : (ACTIONS[alert.action] ?? ""),
    standing(alert, now),
    alert.silenced ? silenceText(alert.silenced_until, now) : "",
  ].filter(Boolean);
}

function standing(alert: Alert, now: number): string {
  if (alert.state === "pending") return "pending";
  if (alert.state === "resolved") return `over, ${formatAge(alert.resolved_at ?? alert.last_at, now)}`;
  return formatAge(alert.last_at, now);
}

/** Says for how long an alert is silenced. */
export function silenceText(until: Alert["silenced_until"], now: number): string {
  return typeof until === "number" ? `silenced until ${formatMoment(until, now)}` : "silenced";
}
