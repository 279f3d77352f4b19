import type { Lengths } from "../lib/dataset";
import { formatCount } from "../lib/numbers";
import classes from "./LengthHistogram.module.css";

/** How long the samples of the training set are. */
export function LengthHistogram({ lengths }: { lengths: Lengths }) {
  const { edges, counts, marks, read, complete, column } = lengths;
  const most = Math.max(...counts);
  const total = counts.reduce((sum, count) => sum + count, 0);
  return (
    <figure className={classes.box} data-testid="lengths">
      <figcaption className={classes.caption}>
        Lengths of the training samples
        <span className="muted">
          {" "}
          {column && <>in {column}</>}
          {!complete && read !== null && <>, of {formatCount(read)} samples that were read</>}
        </span>
      </figcaption>
      <div className={classes.bars} role="img" aria-label="Histogram of the samples' lengths">
        {counts.map((count, place) => {
          const low = edges[place] ?? 0;
          const high = edges[place + 1] ?? low;
          return (
            <span
              key={low}
              className={classes.slot}
              title={`${formatCount(low)}–${formatCount(high)}: ${formatCount(count)} of ${formatCount(total)}`}
            >
              <span
                className={classes.bar}
                style={{ height: `${count > 0 ? Math.max(1.5, (count / most) * 100) : 0}%` }}
              />
            </span>
          );
        })}
      </div>
      <div className={classes.axis}>
        <span>{formatCount(edges[0] ?? 0)}</span>
        <span>{formatCount(edges[Math.floor(edges.length / 2)] ?? 0)}</span>
        <span>{formatCount(edges[edges.length - 1] ?? 0)}</span>
      </div>
      {marks.length > 0 && (
        <dl className={classes.marks}>
          {marks.map((mark) => (
            <div key={mark.name}>
              <dt>{mark.name}</dt>
              <dd>{formatCount(mark.value)}</dd>
            </div>
          ))}
        </dl>
      )}
    </figure>
  );
}
