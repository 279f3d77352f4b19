import { Tooltip } from "@mantine/core";
import { type LiveState, useConnection } from "../api/connection";
import classes from "./LiveIndicator.module.css";

const WORDS: Record<LiveState, [string, string]> = {
  connecting: ["Connecting", "Waiting for the server's live updates."],
  live: ["Live", "What you see changes as the runs report."],
  reconnecting: ["Reconnecting", "The connection for live updates broke; trying again."],
  paused: ["Paused", "Live updates pause while the page is hidden."],
};

export function LiveIndicator() {
  const { live } = useConnection();
  const [word, meaning] = WORDS[live];
  return (
    <Tooltip label={meaning} withArrow>
      <span className={classes.live} data-live={live} data-testid="live" role="status">
        <span className={classes.dot} />
        {word}
      </span>
    </Tooltip>
  );
}
