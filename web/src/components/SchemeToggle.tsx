import { ActionIcon, Tooltip, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { IconMoon, IconSun } from "./icons";

/** Follows the system until somebody chooses. */
export function SchemeToggle() {
  const { setColorScheme } = useMantineColorScheme();
  const shown = useComputedColorScheme("light", { getInitialValueInEffect: false });
  const other = shown === "dark" ? "light" : "dark";
  return (
    <Tooltip label={`Switch to ${other}`} withArrow>
      <ActionIcon
        variant="subtle"
        color="gray"
        size="md"
        aria-label={`Switch to ${other} colours`}
        data-testid="scheme-toggle"
        onClick={() => setColorScheme(other)}
      >
        {shown === "dark" ? <IconSun /> : <IconMoon />}
      </ActionIcon>
    </Tooltip>
  );
}
