const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A duration in its two largest units: 42 s, 12 min 5 s, 3 h 20 min, 2 d 4 h. Sub-second ones as 180 ms. */
export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const size = Math.max(0, seconds);
  if (size === 0) return "0 s";
  if (size < 0.9995) return size < 0.01 ? `${(size * 1000).toFixed(1)} ms` : `${Math.round(size * 1000)} ms`;
  if (size < 10) return `${size.toFixed(2)} s`;
  const whole = Math.round(size);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return pair(whole, MINUTE, "min", 1, "s");
  if (whole < DAY) return pair(whole, HOUR, "h", MINUTE, "min");
  return pair(whole, DAY, "d", HOUR, "h");
}

function pair(seconds: number, large: number, largeName: string, small: number, smallName: string): string {
  const rest = Math.floor((seconds % large) / small);
  const first = `${Math.floor(seconds / large)} ${largeName}`;
  return rest ? `${first} ${rest} ${smallName}` : first;
}

/** A guess of a duration: no more digits than it is good for. */
export function formatRough(seconds: number): string {
  if (seconds < 90) return `${Math.max(5, Math.ceil(seconds / 5) * 5)} s`;
  if (seconds < HOUR) return `${Math.round(seconds / MINUTE)} min`;
  return formatDuration(Math.round(seconds / MINUTE) * MINUTE);
}

/** How long ago, in one unit: now, 42 s ago, 3 min ago, 5 h ago, 12 d ago. */
export function formatAge(then: number, now: number): string {
  const age = now - then;
  if (age < 2) return "now";
  if (age < MINUTE) return `${Math.floor(age)} s ago`;
  if (age < HOUR) return `${Math.floor(age / MINUTE)} min ago`;
  if (age < 2 * DAY) return `${Math.floor(age / HOUR)} h ago`;
  return `${Math.floor(age / DAY)} d ago`;
}

/** A moment for people, in their own time zone: 14:03:20 today, 12 Mar 14:03 this year, otherwise with the year. */
export function formatMoment(time: number, now: number, locale?: string): string {
  const date = new Date(time * 1000);
  const present = new Date(now * 1000);
  const today = date.toDateString() === present.toDateString();
  return today
    ? date.toLocaleTimeString(locale, {
        hour: "2-digit",
        minute: "2-digit",
        second: "2-digit",
        hourCycle: "h23",
      })
    : date.toLocaleString(locale, {
        day: "numeric",
        month: "short",
        year: date.getFullYear() === present.getFullYear() ? undefined : "numeric",
        hour: "2-digit",
        minute: "2-digit",
        hourCycle: "h23",
      });
}
