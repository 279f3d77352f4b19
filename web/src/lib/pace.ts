/** When to do things: not too often, never forgotten, and later and later while they fail. */

/**
 * Calls `work` at once and then at most every `wait` ms and never while it is still at it. A call that came too early
 * is not lost: it happens once, later.
 */
export function paced(work: () => Promise<unknown>, wait: number): { call: () => void; cancel: () => void } {
  let busy = false;
  let again = false;
  let cancelled = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  async function start(): Promise<void> {
    busy = true;
    const pause = new Promise((resolve) => {
      timer = setTimeout(resolve, wait);
    });
    await Promise.allSettled([work(), pause]);
    busy = false;
    if (again && !cancelled) {
      again = false;
      void start();
    }
  }

  return {
    call() {
      if (cancelled) return;
      if (busy) again = true;
      else void start();
    },
    cancel() {
      cancelled = true;
      clearTimeout(timer);
    },
  };
}

/** Milliseconds to wait before attempt number `failures` (1, 2, …): 0.5 s, 1 s, 2 s … 15 s, with ±20 % jitter. */
export function backoff(failures: number, random: () => number = Math.random): number {
  const base = Math.min(15_000, 500 * 2 ** Math.max(0, failures - 1));
  return Math.round(base * (0.8 + 0.4 * random()));
}

/**
 * Makes a gate that lets at most `places` pieces of work happen at a time; the others wait in line. `pause` is awaited
 * between leaving and letting the next one in.
 */
export function gate(places: number, pause: () => Promise<unknown> = () => Promise.resolve()) {
  const waiting: (() => void)[] = [];
  let inside = 0;

  return async function enter<T>(work: () => Promise<T>): Promise<T> {
    if (inside >= places) await new Promise<void>((resolve) => waiting.push(resolve));
    else inside += 1;
    try {
      return await work();
    } finally {
      void pause().then(() => {
        const next = waiting.shift();
        if (next) next();
        else inside -= 1;
      });
    }
  };
}
