import { ActionIcon, CopyButton, Tooltip } from "@mantine/core";
import classes from "./CopyText.module.css";
import { IconCheck, IconCopy } from "./icons";

export function CopyIcon({ text, what }: { text: string; what: string }) {
  return (
    <CopyButton value={text} timeout={1500}>
      {({ copied, copy }) => (
        <Tooltip label={copied ? "Copied" : `Copy ${what}`} withArrow>
          <ActionIcon
            variant="subtle"
            color={copied ? "petrol" : "gray"}
            size="sm"
            onClick={copy}
            aria-label={`Copy ${what}`}
          >
            {copied ? <IconCheck size={14} /> : <IconCopy size={14} />}
          </ActionIcon>
        </Tooltip>
      )}
    </CopyButton>
  );
}

/** A path or an id that people will want to paste somewhere. */
export function CopyText({ text, what }: { text: string; what: string }) {
  return (
    <span className={classes.box}>
      <span className={`mono ${classes.text}`}>{text}</span>
      <CopyIcon text={text} what={what} />
    </span>
  );
}
