import { CopyIcon } from "./CopyText";
import classes from "./EmptyRuns.module.css";
import { Logo } from "./Logo";

const DEFAULT_SERVER = "http://127.0.0.1:8420";

const CODE = `from trainwatch import TrainWatchCallback

trainer = Trainer(..., callbacks=[TrainWatchCallback()])`;

/** The first thing a newcomer sees: how to get a run onto this page. */
export function EmptyRuns() {
  const here = window.location.origin;
  return (
    <section className={classes.box} data-testid="empty">
      <Logo size={40} />
      <h1 className={classes.title}>No runs yet</h1>
      <p className={classes.text}>
        Add the callback to your Trainer and start training. The run appears here with its first step; nothing
        else needs to be set up.
      </p>
      <Code text={CODE} what="the two lines">
        <b>from trainwatch import TrainWatchCallback</b>
        {"\n\ntrainer = Trainer(..., "}
        <b>callbacks=[TrainWatchCallback()]</b>)
      </Code>
      {here !== DEFAULT_SERVER && (
        <>
          <p className={classes.text}>Where you train, say where this server is:</p>
          <Code text={`export TRAINWATCH_SERVER=${here}`} what="the setting">
            <b>export TRAINWATCH_SERVER={here}</b>
          </Code>
        </>
      )}
      <p className={classes.text}>
        Or look at two real runs first, a healthy one and one that a NaN would have ruined:
      </p>
      <Code text="trainwatch demo" what="the command">
        <b>trainwatch demo</b>
      </Code>
    </section>
  );
}

function Code({ text, what, children }: { text: string; what: string; children: React.ReactNode }) {
  return (
    <div className={classes.code}>
      <pre>{children}</pre>
      <CopyIcon text={text} what={what} />
    </div>
  );
}
