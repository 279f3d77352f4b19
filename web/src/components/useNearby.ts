import { useEffect, useRef, useState } from "react";

const AHEAD = "400px";
/** Pixels; the server draws for the next larger multiple, so that resizing a window asks for few figures. */
const WIDTH_STEP = 200;

/** Whether an element is in or near the window, and how wide it is. */
export function useNearby() {
  const ref = useRef<HTMLElement>(null);
  const [near, setNear] = useState(false);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const sight = new IntersectionObserver((entries) => setNear(entries.at(-1)?.isIntersecting ?? false), {
      rootMargin: AHEAD,
    });
    const size = new ResizeObserver(() =>
      setWidth(Math.max(WIDTH_STEP, Math.ceil(element.clientWidth / WIDTH_STEP) * WIDTH_STEP)),
    );
    sight.observe(element);
    size.observe(element);
    return () => {
      sight.disconnect();
      size.disconnect();
    };
  }, []);
  return { ref, near, width };
}
