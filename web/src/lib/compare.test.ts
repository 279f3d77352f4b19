import { expect, test } from "vitest";
import { candidates } from "./compare";

const run = (id: string, project: string, state: "finished" | "halted", started_at: number) => ({
  id,
  project,
  state,
  started_at,
});

test("a finished run of the same project comes first, the newest of them before the others", () => {
  const runs = [
    run("other project", "b", "finished", 9),
    run("halted", "a", "halted", 8),
    run("old", "a", "finished", 1),
    run("new", "a", "finished", 2),
    run("itself", "a", "halted", 7),
  ];
  const found = candidates(runs, { id: "itself", project: "a" }).map((one) => one.id);
  expect(found).toEqual(["new", "old", "halted", "other project"]);
});

test("a run alone has nobody to be compared with", () => {
  expect(candidates([run("itself", "a", "finished", 1)], { id: "itself", project: "a" })).toEqual([]);
});
