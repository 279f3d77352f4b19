import type { Channel, ChannelRequest, Delivery } from "../api/types";

export type Kind = Channel["kind"];

/** What each kind is called, and what its address looks like. */
export const KINDS: Record<Kind, { title: string; says: string; placeholder: string }> = {
  slack: {
    title: "Slack",
    says: "The address of an incoming webhook.",
    placeholder: "https://hooks.slack.com/services/…",
  },
  webhook: {
    title: "Webhook",
    says: "Gets signed JSON; docs/alerts.md says what.",
    placeholder: "https://example.org/trainwatch",
  },
  apprise: {
    title: "Apprise",
    says: "E-mail, Discord, Teams, Telegram, ntfy, PagerDuty, DingTalk, Feishu, WeCom, …",
    placeholder: "mailto://user:password@example.org",
  },
};

/** What the form of a channel holds; everything is text until it is sent. */
export interface Draft {
  name: string;
  kind: Kind;
  url: string;
  key: string;
  least: Channel["least"];
  rules: string;
  send_resolved: boolean;
  language: Channel["language"];
  quiet: boolean;
  zone: string;
  start: string;
  end: string;
  most: number;
  minutes: number;
  enabled: boolean;
}

/** The form of a channel, or of a new one. */
export function draftOf(channel: Channel | null, zone: string): Draft {
  return {
    name: channel?.name ?? "",
    kind: channel?.kind ?? "slack",
    url: "",
    key: "",
    least: channel?.least ?? "warning",
    rules: channel?.rules.join(" ") ?? "",
    send_resolved: channel?.send_resolved ?? true,
    language: channel?.language ?? "en",
    quiet: channel ? channel.quiet !== null : false,
    zone: channel?.quiet?.zone ?? zone,
    start: channel?.quiet?.start ?? "22:00",
    end: channel?.quiet?.end ?? "07:00",
    most: channel?.digest.most ?? 10,
    minutes: (channel?.digest.seconds ?? 300) / 60,
    enabled: channel?.enabled ?? true,
  };
}

/** What is sent for a form. An address or key that was left empty stays as it is. */
export function wishOf(draft: Draft): ChannelRequest {
  return {
    name: draft.name.trim(),
    kind: draft.kind,
    url: draft.url.trim() || null,
    key: draft.kind === "webhook" ? draft.key || null : null,
    least: draft.least,
    rules: draft.rules.split(/[\s,]+/).filter(Boolean),
    send_resolved: draft.send_resolved,
    language: draft.language,
    quiet: draft.quiet ? { zone: draft.zone, start: draft.start, end: draft.end } : null,
    digest: { most: draft.most, seconds: draft.minutes * 60 },
    enabled: draft.enabled,
  };
}

/** A key for signing that nobody can guess. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const CHANGES: Record<Delivery["change"], string> = {
  fired: "fires",
  raised: "worse",
  resolved: "over",
  digest: "digest",
  test: "test",
};

/** What a delivery was about, in few words. */
export function changeText(delivery: Pick<Delivery, "change" | "rule">): string {
  const change = CHANGES[delivery.change];
  return delivery.rule ? `${delivery.rule}: ${change}` : change;
}

/** How a delivery stands: what is shown, and how loud. */
export function stateOf(delivery: Pick<Delivery, "state" | "attempts">): {
  text: string;
  tone: "good" | "bad" | "quiet" | "busy";
} {
  const tries = delivery.attempts.length;
  if (delivery.state === "sent") return { text: "arrived", tone: "good" };
  if (delivery.state === "failed") return { text: "failed", tone: "bad" };
  if (delivery.state === "suppressed") return { text: "not sent", tone: "quiet" };
  if (delivery.state === "gathered") return { text: "in a digest", tone: "busy" };
  return { text: tries > 0 ? "tried, waits" : "waits", tone: "busy" };
}
