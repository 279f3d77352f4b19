import { Link } from "wouter";
import type { Delivery } from "../api/types";
import { changeText, stateOf } from "../lib/channels";
import { formatAge, formatMoment } from "../lib/time";
import classes from "./Channels.module.css";
import { DataTable } from "./DataTable";
import { useNow } from "./useNow";

interface Props {
  deliveries: readonly Delivery[];
  /** Which side is not known from the place where the table stands. */
  shows: "run" | "channel";
}

/** Deliveries, the newest first, each with what became of its attempts. */
export function DeliveryTable({ deliveries, shows }: Props) {
  const now = useNow();
  const columns = [
    { title: "When" },
    { title: shows === "run" ? "Run" : "Channel" },
    { title: "What" },
    { title: "How it stands" },
  ];
  return (
    <DataTable columns={columns} id="deliveries">
      {deliveries.map((delivery) => {
        const state = stateOf(delivery);
        const last = delivery.attempts.at(-1);
        const waits = delivery.state === "waiting" && delivery.due_at > now + 1;
        const detail = delivery.reason || last?.error || "";
        return (
          <tr key={delivery.id} data-state={delivery.state}>
            <td className={classes.state} title={`Delivery ${delivery.id}`}>
              {formatAge(delivery.created_at, now)}
            </td>
            <td>
              {shows === "channel" ? (
                delivery.channel_name || delivery.kind
              ) : delivery.run ? (
                <Link href={`/runs/${encodeURIComponent(delivery.run)}`}>{delivery.run.slice(0, 12)}</Link>
              ) : (
                "–"
              )}
            </td>
            <td>{changeText(delivery)}</td>
            <td>
              <span className={classes.state} data-tone={state.tone}>
                {state.text}
                {delivery.attempts.length > 1 && `, ${delivery.attempts.length} attempts`}
                {delivery.digest && delivery.state === "sent" && " in a digest"}
                {waits && `, next ${formatMoment(delivery.due_at, now)}`}
              </span>
              {detail && <span className={classes.detail}>{detail}</span>}
            </td>
          </tr>
        );
      })}
    </DataTable>
  );
}
