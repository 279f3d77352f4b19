import type { ReactNode } from "react";
import { Link } from "wouter";
import classes from "./SettingsLayout.module.css";

/** The pages of the settings, in the order of the navigation. */
const PAGES = [
  { path: "/settings/alerts", title: "Alerts" },
  { path: "/settings/access", title: "Access" },
  { path: "/settings/data", title: "Data" },
] as const;

export type SettingsPath = (typeof PAGES)[number]["path"];

/** What surrounds every page of the settings: the navigation on the left, on narrow screens above. */
export function SettingsLayout({ here, children }: { here: SettingsPath; children: ReactNode }) {
  return (
    <div className={classes.layout}>
      <nav className={classes.nav} aria-label="Settings">
        {PAGES.map(({ path, title }) => (
          <Link
            key={path}
            href={path}
            data-here={path === here}
            aria-current={path === here ? "page" : undefined}
          >
            {title}
          </Link>
        ))}
      </nav>
      <div className={classes.content}>{children}</div>
    </div>
  );
}
