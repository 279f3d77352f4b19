import { type CSSVariablesResolver, createTheme, type MantineColorsTuple } from "@mantine/core";

const petrol: MantineColorsTuple = [
  "#e6f4f3",
  "#cfe6e5",
  "#9fcfcd",
  "#6cb6b4",
  "#43a19f",
  "#279391",
  "#128a89",
  "#0b6b6c",
  "#075f60",
  "#004f50",
];

/** Mantine's own greys on a dark page, in the page's hue. */
const dark: MantineColorsTuple = [
  "#e4eaec",
  "#c0cacd",
  "#93a0a6",
  "#6b787e",
  "#3a474d",
  "#2c363b",
  "#1b2225",
  "#161b1e",
  "#12171a",
  "#0f1315",
];

const danger: MantineColorsTuple = [
  "#fdecee",
  "#f8d3d8",
  "#f0a3ad",
  "#e97180",
  "#e3475b",
  "#d42f46",
  "#cd263d",
  "#c31d35",
  "#a9152b",
  "#8d0f23",
];

export const FONT = "'Plex Sans', ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

export const theme = createTheme({
  primaryColor: "petrol",
  primaryShade: { light: 7, dark: 5 },
  colors: { petrol, danger, dark },
  fontFamily: FONT,
  fontFamilyMonospace: "'Plex Mono', ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
  fontSizes: { xs: "12px", sm: "13px", md: "14px", lg: "16px", xl: "20px" },
  defaultRadius: 6,
  cursorType: "pointer",
  focusRing: "auto",
  components: {
    Modal: {
      styles: {
        content: { background: "var(--tw-surface)" },
        header: { background: "var(--tw-surface)" },
        title: { fontSize: 16, fontWeight: 600 },
      },
    },
  },
});

/** Mantine's own parts take the page's colours, so that there is one palette. */
export const cssVariables: CSSVariablesResolver = () => {
  const page = {
    "--mantine-color-body": "var(--tw-bg)",
    "--mantine-color-text": "var(--tw-text)",
    "--mantine-color-dimmed": "var(--tw-muted)",
    "--mantine-color-default": "var(--tw-surface)",
    "--mantine-color-default-hover": "var(--tw-hover)",
    "--mantine-color-default-border": "var(--tw-line-strong)",
    "--mantine-color-placeholder": "var(--tw-muted)",
    "--mantine-color-anchor": "var(--tw-accent)",
    "--mantine-color-error": "var(--tw-critical)",
  };
  return { variables: {}, light: page, dark: page };
};
