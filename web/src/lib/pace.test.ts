import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { backoff, gate, paced } from "./pace";

describe("paced", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("works at once, and once more for all calls that came too early", async () => {
    const work = vi.fn(() => Promise.resolve());
    const pace = paced(work, 500);
    pace.call();
    expect(work).toHaveBeenCalledTimes(1);
    for (let n = 0; n < 20; n += 1) pace.call();
    await vi.advanceTimersByTimeAsync(499);
    expect(work).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(1);
    expect(work).toHaveBeenCalledTimes(2);
    await vi.advanceTimersByTimeAsync(5000);
    expect(work).toHaveBeenCalledTimes(2);
  });

  it("never works twice at a time, and does not lose a call that came meanwhile", async () => {
    let finish = () => {};
    const work = vi.fn(() => new Promise<void>((resolve) => (finish = resolve)));
    const pace = paced(work, 500);
    pace.call();
    await vi.advanceTimersByTimeAsync(3000);
    pace.call();
    expect(work).toHaveBeenCalledTimes(1);
    finish();
    await vi.advanceTimersByTimeAsync(0);
    expect(work).toHaveBeenCalledTimes(2);
  });

  it("goes on after work that failed", async () => {
    const work = vi.fn(() => Promise.reject(new Error("away")));
    const pace = paced(work, 500);
    pace.call();
    pace.call();
    await vi.advanceTimersByTimeAsync(500);
    expect(work).toHaveBeenCalledTimes(2);
  });

  it("does nothing more once cancelled", async () => {
    const work = vi.fn(() => Promise.resolve());
    const pace = paced(work, 500);
    pace.call();
    pace.call();
    pace.cancel();
    pace.call();
    await vi.advanceTimersByTimeAsync(5000);
    expect(work).toHaveBeenCalledTimes(1);
  });
});

it("backs off to 15 s, with jitter", () => {
  const plain = (failures: number) => backoff(failures, () => 0.5);
  expect([1, 2, 3, 6, 50].map(plain)).toEqual([500, 1000, 2000, 15000, 15000]);
  expect(backoff(2, () => 0)).toBe(800);
  expect(backoff(2, () => 1)).toBe(1200);
});

describe("gate", () => {
  const settle = () => new Promise((resolve) => setTimeout(resolve));

  it("lets so many in at a time, in order", async () => {
    const enter = gate(2);
    const order: string[] = [];
    const leave: (() => void)[] = [];
    const work = (name: string) => () => {
      order.push(name);
      return new Promise<void>((resolve) => leave.push(resolve));
    };
    const all = ["a", "b", "c", "d"].map((name) => enter(work(name)));
    await settle();
    expect(order).toEqual(["a", "b"]);
    leave[1]?.();
    await settle();
    expect(order).toEqual(["a", "b", "c"]);
    leave[0]?.();
    leave[2]?.();
    await settle();
    leave[3]?.();
    await Promise.all(all);
    expect(order).toEqual(["a", "b", "c", "d"]);
  });

  it("gives the place of work that failed to the next one, and passes the failure on", async () => {
    const enter = gate(1);
    const failed = enter(() => Promise.reject(new Error("no")));
    const next = enter(() => Promise.resolve(7));
    await expect(failed).rejects.toThrow("no");
    await expect(next).resolves.toBe(7);
    await settle();
    await expect(enter(() => Promise.resolve(8))).resolves.toBe(8);
  });

  it("waits between two pieces of work", async () => {
    let go = () => {};
    const enter = gate(1, () => new Promise<void>((resolve) => (go = resolve)));
    await enter(() => Promise.resolve());
    const second = vi.fn(() => Promise.resolve());
    void enter(second);
    await settle();
    expect(second).not.toHaveBeenCalled();
    go();
    await settle();
    expect(second).toHaveBeenCalledTimes(1);
  });
});
