import { Menu } from "@mantine/core";
import { useState } from "react";
import { type Silence, useSilence } from "../api/alerts";
import type { Alert, Autopsy } from "../api/types";
import { alertFacts, isQuiet } from "../lib/alerts";
import { autopsyOfAlert } from "../lib/autopsy";
import { AlertDeliveries } from "./AlertDeliveries";
import classes from "./AlertList.module.css";
import { IconAlert, IconBell, IconBellOff, IconInfo } from "./icons";
import { useNow } from "./useNow";

const FEW = 4;

interface Props {
  run: string;
  /** As the server orders them: what fires first, then what is silenced, then what is over. */
  alerts: readonly Alert[];
  autopsies: readonly Autopsy[];
  onAutopsy: (id: number) => void;
}

export function AlertList({ run, alerts, autopsies, onAutopsy }: Props) {
  const now = useNow();
  const [all, setAll] = useState(false);
  if (alerts.length === 0) return null;
  const shown = all ? alerts : alerts.slice(0, FEW);
  return (
    <section aria-label="Alerts" className={classes.box}>
      <ul className={classes.list} data-testid="alerts">
        {shown.map((alert) => (
          <AlertItem
            key={alert.id}
            run={run}
            alert={alert}
            now={now}
            autopsy={autopsyOfAlert(autopsies, alert)}
            onAutopsy={onAutopsy}
          />
        ))}
      </ul>
      {alerts.length > FEW && (
        <button type="button" className={classes.toggle} onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${alerts.length} alerts`}
        </button>
      )}
    </section>
  );
}

interface ItemProps {
  run: string;
  alert: Alert;
  now: number;
  autopsy: Autopsy | null;
  onAutopsy: (id: number) => void;
}

function AlertItem({ run, alert, now, autopsy, onAutopsy }: ItemProps) {
  return (
    <li
      className={classes.item}
      data-severity={alert.severity}
      data-testid="alert"
      data-rule={alert.rule}
      data-state={alert.state}
      data-silenced={alert.silenced}
      data-quiet={isQuiet(alert)}
    >
      <span className={classes.icon}>{alert.severity === "info" ? <IconInfo /> : <IconAlert />}</span>
      <span className={classes.text}>
        <span className="visually-hidden">{alert.severity}: </span>
        {alert.sentence}
        {autopsy && (
          <>
            {" "}
            <button type="button" className={classes.link} onClick={() => onAutopsy(autopsy.id)}>
              Why?
            </button>
          </>
        )}
      </span>
      <span className={classes.meta}>{alertFacts(alert, now).join(" · ")}</span>
      <SilenceMenu run={run} alert={alert} />
    </li>
  );
}

const CHOICES: { label: string; silence: Silence }[] = [
  { label: "For an hour", silence: 1 },
  { label: "For a day", silence: 24 },
  { label: "For ever", silence: null },
];

/** A silenced alert is still shown, but not counted, and nobody is notified. */
function SilenceMenu({ run, alert }: { run: string; alert: Alert }) {
  const { mutate, error, reset } = useSilence(run);
  const [told, setTold] = useState(false);
  const act = (silence: Silence) => mutate({ alert: alert.id, silence });
  return (
    <>
      <Menu position="bottom-end" shadow="md" withinPortal onClose={reset} closeOnItemClick={true}>
        <Menu.Target>
          <button
            type="button"
            className={classes.silence}
            aria-label={alert.silenced ? "Silenced; change" : "Silence this alert"}
            title={error ? error.message : alert.silenced ? "Silenced" : "Silence"}
            data-testid="silence"
          >
            {alert.silenced ? <IconBellOff size={14} /> : <IconBell size={14} />}
          </button>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Label>{alert.silenced ? "Silenced" : "Silence this alert"}</Menu.Label>
          {alert.silenced && (
            <Menu.Item onClick={() => act("end")} data-testid="silence-end">
              Hear it again
            </Menu.Item>
          )}
          {CHOICES.map(({ label, silence }) => (
            <Menu.Item key={label} onClick={() => act(silence)} data-testid={`silence-${silence ?? "ever"}`}>
              {label}
            </Menu.Item>
          ))}
          <Menu.Divider />
          <Menu.Item onClick={() => setTold(true)} data-testid="alert-told">
            Where it was told…
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {told && <AlertDeliveries run={run} alert={alert} onClose={() => setTold(false)} />}
    </>
  );
}
