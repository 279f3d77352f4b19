import type { DeviceInfo, PhaseTotal, RankInfo } from "../api/types";
import { formatBytes, formatCount } from "../lib/numbers";
import { STATE_LOOKS } from "../lib/run";
import { formatAge } from "../lib/time";
import { Bar } from "./Bar";
import { DataTable } from "./DataTable";
import classes from "./DataTable.module.css";
import { PhasesTable } from "./PhasesTable";
import { StateGlyph } from "./StateMark";
import { useNow } from "./useNow";

const COLUMNS = [
  { title: "Rank" },
  { title: "State" },
  { title: "Node" },
  { title: "Process", numeric: true },
  { title: "Step", numeric: true },
  { title: "Phase" },
  { title: "Memory" },
  { title: "Last heard", numeric: true },
];

interface Props {
  ranks: readonly RankInfo[];
  hosts: readonly DeviceInfo[];
  phases: readonly PhaseTotal[];
}

export function RanksTable({ ranks, hosts, phases }: Props) {
  const now = useNow();
  if (ranks.length === 0) return <p className={classes.none}>No rank has reported yet.</p>;
  return (
    <>
      <DataTable columns={COLUMNS} id="ranks">
        {ranks.map((rank) => (
          <tr
            key={`${rank.rank}/${rank.node}`}
            data-testid="rank-row"
            data-rank={rank.rank}
            data-state={rank.state}
          >
            <td>{rank.rank}</td>
            <td>
              <RankState state={rank.state} />
            </td>
            <td>{rank.node}</td>
            <td className="numeric mono">{rank.pid || "–"}</td>
            <td className="numeric">{formatCount(rank.step)}</td>
            <td>{rank.phase || <span className="muted">–</span>}</td>
            <td className={classes.memory}>
              {rank.devices.map((device) => (
                <DeviceMemory key={device.device} device={device} />
              ))}
            </td>
            <td className="numeric">{formatAge(rank.last_event_at, now)}</td>
          </tr>
        ))}
      </DataTable>
      {hosts.map((host) => (
        <p key={host.device} className={classes.caption}>
          {host.device}: {formatBytes(host.used)} of {formatBytes(host.capacity)} in use by everybody
        </p>
      ))}
      <PhasesTable phases={phases} several={ranks.length > 1} />
    </>
  );
}

function RankState({ state }: { state: RankInfo["state"] }) {
  if (state === "waiting") return <span className="muted">Waiting</span>;
  return (
    <span style={{ display: "inline-flex", alignItems: "center", gap: 8, color: STATE_LOOKS[state].colour }}>
      <StateGlyph state={state} />
      {STATE_LOOKS[state].label}
    </span>
  );
}

function DeviceMemory({ device }: { device: DeviceInfo }) {
  const { used, capacity } = device;
  if (used === null) return null;
  const share = capacity ? used / capacity : null;
  const tone = share === null || share < 0.88 ? "accent" : share < 0.95 ? "warning" : "critical";
  return (
    <div className={classes.device}>
      <div className={classes.deviceline}>
        <span className="muted">{device.device}</span>
        <span>
          {formatBytes(used)}
          {capacity !== null && <span className="muted"> / {formatBytes(capacity)}</span>}
        </span>
      </div>
      {share !== null && <Bar share={share} label={`Memory in use on ${device.device}`} tone={tone} />}
    </div>
  );
}
