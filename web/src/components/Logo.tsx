/** The mark: a loss curve, the signal light at its tip, and the gaze that follows it. */
export function Logo({ size = 24 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" style={{ flex: "none" }}>
      <rect width="32" height="32" rx="8" fill="#0b6b6c" />
      <path
        d="M6.6 7.2c.9 9.2 5 14.6 12.4 15.2"
        fill="none"
        stroke="#fff"
        strokeWidth="3"
        strokeLinecap="round"
      />
      <circle cx="22.6" cy="22.5" r="3.6" fill="#ffb84d" />
      <path
        d="M14.8 7.4a11 11 0 0 1 10.4 8.2"
        fill="none"
        stroke="#fff"
        strokeOpacity=".55"
        strokeWidth="2.2"
        strokeLinecap="round"
      />
    </svg>
  );
}
