import { Button } from "@mantine/core";
import type { ReactNode } from "react";
import classes from "./ErrorPane.module.css";

interface Props {
  title: string;
  children: ReactNode;
  onRetry?: () => void;
}

/** What takes the place of a page or part that cannot be shown. */
export function ErrorPane({ title, children, onRetry }: Props) {
  return (
    <div className={classes.box} role="alert">
      <h2 className={classes.title}>{title}</h2>
      <p className={classes.text}>{children}</p>
      {onRetry && (
        <Button variant="default" size="xs" onClick={onRetry}>
          Try again
        </Button>
      )}
    </div>
  );
}
