import type { ReactNode } from "react";
import { Link, useLocation } from "wouter";
import { useConnection } from "../api/connection";
import { LoginPage } from "../pages/LoginPage";
import { ErrorBoundary } from "./ErrorBoundary";
import { LanguageMenu } from "./LanguageMenu";
import { LiveIndicator } from "./LiveIndicator";
import { Logo } from "./Logo";
import { SchemeToggle } from "./SchemeToggle";
import { ServerBar } from "./ServerBar";
import classes from "./Shell.module.css";

/** What surrounds every page: the header, the connection to the server, the login when the server asks for one. */
export function Shell({ children }: { children: ReactNode }) {
  const { authorized } = useConnection();
  const [place] = useLocation();
  return (
    <>
      <a href="#main" className={classes.skip}>
        Skip to content
      </a>
      <header className={classes.header}>
        <div className={classes.bar}>
          <Link href="/" className={classes.brand} aria-label="TrainWatch, all runs">
            <Logo />
            <span>TrainWatch</span>
          </Link>
          <nav className={classes.nav} aria-label="Pages">
            <Link href="/" data-here={!place.startsWith("/rules") && !place.startsWith("/settings")}>
              Runs
            </Link>
            <Link href="/rules" data-here={place.startsWith("/rules")} data-testid="nav-rules">
              Rules
            </Link>
            <Link href="/settings" data-here={place.startsWith("/settings")} data-testid="nav-settings">
              Settings
            </Link>
          </nav>
          <div className={classes.tools}>
            {authorized && <LiveIndicator />}
            <LanguageMenu />
            <SchemeToggle />
          </div>
        </div>
      </header>
      <ServerBar />
      <main id="main" className={classes.main} tabIndex={-1}>
        {authorized ? <ErrorBoundary place={place}>{children}</ErrorBoundary> : <LoginPage />}
      </main>
    </>
  );
}
