import { Tabs } from "@mantine/core";
import { type ReactNode, useEffect, useRef } from "react";
import type { RunDetail } from "../api/types";
import { formatCount } from "../lib/numbers";
import { TABS, type Tab } from "../lib/view";
import classes from "./RunTabs.module.css";

const TITLES: Record<Tab, string> = {
  charts: "Charts",
  ranks: "Ranks",
  checkpoints: "Checkpoints",
  nonfinite: "Non-finite steps",
  autopsy: "Autopsy",
  setup: "Setup",
  compare: "Compare",
};

interface Props {
  run: RunDetail;
  tab: Tab;
  onTab: (tab: Tab) => void;
  children: ReactNode;
}

export function RunTabs({ run, tab, onTab, children }: Props) {
  const counts: Partial<Record<Tab, number>> = {
    ranks: run.ranks.length,
    checkpoints: run.checkpoints.length,
    nonfinite: run.nonfinite_count,
    autopsy: run.autopsy_count,
  };
  const shown = TABS.filter((name) => name !== "autopsy" || run.autopsy_count > 0 || tab === "autopsy");
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // In a narrow window the tabs scroll sideways, and a link may have led to one that is out of sight.
    const chosen = list.current?.querySelector<HTMLElement>(`[data-testid="tab-${tab}"]`);
    const box = list.current;
    if (!chosen || !box) return;
    const left = chosen.offsetLeft - box.offsetLeft;
    if (left < box.scrollLeft || left + chosen.offsetWidth > box.scrollLeft + box.clientWidth)
      box.scrollLeft = left - 16;
  }, [tab]);
  return (
    <Tabs value={tab} onChange={(value) => onTab(TABS.find((name) => name === value) ?? "charts")}>
      <Tabs.List ref={list} className={classes.list}>
        {shown.map((name) => {
          const count = counts[name] ?? 0;
          return (
            <Tabs.Tab key={name} value={name} className={classes.tab} data-testid={`tab-${name}`}>
              {TITLES[name]}
              {count > 0 && (
                <span className={name === "nonfinite" || name === "autopsy" ? classes.bad : classes.count}>
                  {formatCount(count)}
                </span>
              )}
            </Tabs.Tab>
          );
        })}
      </Tabs.List>
      <Tabs.Panel value={tab} className={classes.panel}>
        {children}
      </Tabs.Panel>
    </Tabs>
  );
}
