/** The few icons of the page, drawn on one 16-pixel grid. They are decoration: the text beside them speaks. */
import type { ReactNode } from "react";

interface IconProps {
  size?: number;
}

function Icon({ size = 16, children }: IconProps & { children: ReactNode }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      style={{ flex: "none" }}
    >
      {children}
    </svg>
  );
}

export const IconSearch = (p: IconProps) => (
  <Icon {...p}>
    <circle cx="7" cy="7" r="4.25" />
    <path d="m10.2 10.2 3.3 3.3" />
  </Icon>
);

export const IconCopy = (p: IconProps) => (
  <Icon {...p}>
    <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" />
    <path d="M3.5 10.5h-.2a.8.8 0 0 1-.8-.8V3.3c0-.4.4-.8.8-.8h6.4c.4 0 .8.4.8.8v.2" />
  </Icon>
);

export const IconCheck = (p: IconProps) => (
  <Icon {...p}>
    <path d="m3 8.5 3.2 3.2L13 5" />
  </Icon>
);

export const IconSun = (p: IconProps) => (
  <Icon {...p}>
    <circle cx="8" cy="8" r="2.75" />
    <path d="M8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9" />
  </Icon>
);

export const IconMoon = (p: IconProps) => (
  <Icon {...p}>
    <path d="M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8Z" />
  </Icon>
);

export const IconStop = (p: IconProps) => (
  <Icon {...p}>
    <path d="M5.4 2h5.2L14 5.4v5.2L10.6 14H5.4L2 10.6V5.4Z" />
  </Icon>
);

export const IconSave = (p: IconProps) => (
  <Icon {...p}>
    <path d="M8 2.5v7.2M5 6.9l3 3 3-3M2.5 13.5h11" />
  </Icon>
);

export const IconAlert = (p: IconProps) => (
  <Icon {...p}>
    <path d="M8 2.3 14.3 13.2H1.7Z" />
    <path d="M8 6.6v2.9M8 11.4v.05" />
  </Icon>
);

export const IconInfo = (p: IconProps) => (
  <Icon {...p}>
    <circle cx="8" cy="8" r="6" />
    <path d="M8 7.4v3.4M8 5.1v.05" />
  </Icon>
);

export const IconReset = (p: IconProps) => (
  <Icon {...p}>
    <path d="M3 8a5 5 0 1 0 1.6-3.7L3 5.8M3 2.6v3.2h3.2" />
  </Icon>
);

export const IconChevron = (p: IconProps) => (
  <Icon {...p}>
    <path d="m6 3.5 4.5 4.5L6 12.5" />
  </Icon>
);
export const IconBell = (p: IconProps) => (
  <Icon {...p}>
    <path d="M4 11V7a4 4 0 0 1 8 0v4l1.2 1.2H2.8zM6.8 14.2h2.4" />
  </Icon>
);
export const IconBellOff = (p: IconProps) => (
  <Icon {...p}>
    <path d="M4 11V7a4 4 0 0 1 8 0v4l1.2 1.2H2.8zM6.8 14.2h2.4M2.5 2.5l11 11" />
  </Icon>
);
