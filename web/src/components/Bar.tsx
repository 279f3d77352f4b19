import classes from "./Bar.module.css";

interface Props {
  /** 0 to 1. */
  share: number;
  label: string;
  tone?: "accent" | "quiet" | "warning" | "critical";
}

/** A thin bar: progress, or memory in use. */
export function Bar({ share, label, tone = "accent" }: Props) {
  const percent = Math.min(100, Math.max(0, share * 100));
  return (
    // biome-ignore lint/a11y/useSemanticElements: browsers do not let a meter element be styled alike
    <span
      className={classes.track}
      role="meter"
      aria-label={label}
      aria-valuenow={Math.round(percent)}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <span className={classes.fill} data-tone={tone} style={{ width: `${percent}%` }} />
    </span>
  );
}
