import { useEffect, useState } from "react";

/** The present time in Unix seconds, again every second, for ages and durations that grow by themselves. */
export function useNow(): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
