import { Button } from "@mantine/core";
import { useConnection } from "../api/connection";
import { retryNow } from "../api/live";
import { formatMoment } from "../lib/time";
import { IconAlert } from "./icons";
import classes from "./ServerBar.module.css";

/** Says that the server is away, and how old what is still shown is. */
export function ServerBar() {
  const { reachable, heardAt } = useConnection();
  if (reachable) return null;
  return (
    <div className={classes.bar} role="alert" data-testid="server-bar">
      <IconAlert />
      <span>
        TrainWatch's server does not answer.{" "}
        {heardAt > 0 && <>What you see is from {formatMoment(heardAt, Date.now() / 1000)}. </>}
        Training is not affected; trying again…
      </span>
      <Button size="compact-xs" variant="default" onClick={retryNow}>
        Try now
      </Button>
    </div>
  );
}
