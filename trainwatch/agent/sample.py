"""Takes the readings of a node: each rank's process and devices, and the machine."""

from __future__ import annotations

from collections import Counter
from typing import Final

from trainwatch.agent.disk import DEVICE, DiskWatch
from trainwatch.agent.ranks import RankState
from trainwatch.events import DeviceValues, OtherProcess, RunStarted, Sampled, Values
from trainwatch.probes import cgroup, family, gpu, host, nvml, visible

# What hardly ever changes is repeated now and then for whoever joins late.
CAPACITY_SECONDS: Final = 30.0
# Looking at all processes of the machine takes milliseconds.
TREE_SECONDS: Final = 5.0
_RARE: Final = ("memory/capacity", "memory/outside", "host/oom_kills")
_CAPACITY: Final = "memory/capacity"
_MOVED: Final = 256 * 1024 * 1024


class _Watched:
    """One process under observation."""

    def __init__(self, started: RunStarted, library: nvml.Nvml) -> None:
        self.pid = started.pid
        names = [str(started.environment.get("device") or "cpu")]
        spread = started.model.get("devices")
        if isinstance(spread, list):
            names += [str(name) for name in spread]
        uuids = started.environment.get(visible.UUIDS)
        if isinstance(uuids, dict):
            names += map(str, uuids)
        # torch says plain "cuda" for the first one; readings of one device must carry one name.
        names = list(dict.fromkeys("cuda:0" if name == "cuda" else name for name in names))
        wanted = visible.visible(started.environment, names)
        self.devices = gpu.DeviceProbe(library, self.pid, wanted) if wanted else None
        self.capacity = host.capacity(self.pid)
        self.group = cgroup.find(self.pid)
        self.oom_kills = self.group.oom_kills() if self.group else 0
        self.others: dict[str, list[OtherProcess]] = {}

    def read(self, state: RankState, circle: gpu.Circle | None, now: float) -> DeviceValues:
        """Reads once.

        Args:
            state: The rank.
            circle: The run's processes; None while there is no NVML.
            now: Monotonic seconds.
        """
        readings: DeviceValues = {}
        self.others = {}
        if self.devices and circle:
            readings, self.others = self.devices.read(now, circle)
        for name, values in readings.items():
            # The rank says what its allocator can have; NVML counts in what the driver keeps for itself.
            if "memory/reserved" in state.devices.get(name, {}):
                values.pop(_CAPACITY, None)
        resident = host.resident(self.pid)
        if resident:
            readings["cpu"] = {"memory/resident": float(resident)}
            if self.capacity:
                readings["cpu"][_CAPACITY] = float(self.capacity)
        return readings


class Sampler:
    """Samples all ranks of a node."""

    def __init__(self) -> None:
        self._nvml = nvml.Nvml()
        self._numbered = gpu.numbered_as_the_driver()
        self._watched: dict[str, _Watched] = {}
        self._host: host.HostProbe | None = None
        self._told: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._told_others: dict[str, list[OtherProcess]] = {}
        self._tree_at = 0.0
        self._disk = DiskWatch()

    def sample(self, ranks: list[RankState], time: float, now: float) -> list[Sampled]:
        """Reads once.

        Args:
            ranks: The ranks whose processes run; their last readings are updated.
            time: Unix time.
            now: Monotonic seconds.

        Returns:
            One event for each rank of which something could be read, and one for the node.
        """
        watched = {state.source.name: one for state in ranks if (one := self._watch(state)) is not None}
        circle = self._circle([state for state in ranks if state.source.name in watched], watched, now)
        trees: dict[int, int] = {}
        if now >= self._tree_at:
            self._tree_at = now + TREE_SECONDS
            trees = family.trees_resident({one.pid for one in watched.values()})
        samples = []
        for state in ranks:
            name = state.source.name
            if name not in watched:
                continue
            devices = watched[name].read(state, circle, now)
            if not devices:
                continue
            if "cpu" in devices and watched[name].pid in trees:
                devices["cpu"]["memory/tree_resident"] = float(trees[watched[name].pid])
            for device, outside in state.outside.sampled(time, devices).items():
                devices.setdefault(device, {})["memory/outside"] = outside
            state.note(devices)
            samples.append(
                Sampled(
                    time=time,
                    devices=self._sparing(name, devices, now),
                    rank=state.rank,
                    step=state.step,
                    phase=state.phase,
                    others=self._news(name, watched[name].others),
                ),
            )
        if self._host is None:
            # The ranks' cgroup draws the line, and the agent may have been started in another one.
            first = next(iter(self._watched.values()), None)
            self._host = host.HostProbe(first.pid) if first else None
        node = self._sparing("", self._host.read(), now) if self._host else {}
        room = self._read_disk(ranks, now)
        if room:
            node[DEVICE] = room
        if node:
            samples.append(Sampled(time=time, devices=node))
        return samples

    def is_new(self, state: RankState) -> bool:
        """Tells whether a rank names a process of which nothing has been read yet."""
        watched = self._watched.get(state.source.name)
        pid = state.started.pid if state.started else 0
        return bool(pid) and (watched is None or watched.pid != pid)

    def _read_disk(self, ranks: list[RankState], now: float) -> Values:
        # Ranks of a run share an output folder, and the first of them saves.
        output_dir = next((state.started.output_dir for state in ranks if state.started), "")
        checkpoint = next((state.checkpoint for state in ranks if state.checkpoint), "")
        return self._disk.read(output_dir, checkpoint, now)

    def oom_kills(self, state: RankState) -> int:
        """Returns how many processes the OOM killer took in the rank's cgroup since it was first watched."""
        watched = self._watched.get(state.source.name)
        return max(watched.group.oom_kills() - watched.oom_kills, 0) if watched and watched.group else 0

    def _watch(self, state: RankState) -> _Watched | None:
        if state.started is None or not state.started.pid:
            return None
        if self.is_new(state):
            self._watched[state.source.name] = _Watched(state.started, self._nvml)
        return self._watched[state.source.name]

    def _circle(self, ranks: list[RankState], watched: dict[str, _Watched], now: float) -> gpu.Circle | None:
        """Returns what tells the run's processes from others; None without NVML, or without a device to ask it for."""
        probes = [(state, one.devices) for state in ranks if (one := watched[state.source.name]).devices]
        if not probes or not self._nvml.ready(now):
            return None
        sharing: Counter[str] = Counter()
        for state, probe in probes:
            for device, uuid in probe.locate(now).items() if probe else ():
                sharing[uuid] += state.devices.get(device, {}).get("memory/reserved", 0.0) > 0
        return gpu.Circle({one.pid for one in watched.values()}, self._numbered, sharing)

    def _sparing(self, who: str, devices: DeviceValues, now: float) -> DeviceValues:
        """Leaves out what hardly ever changes when it was recorded a short while ago and is still the same."""
        kept: DeviceValues = {}
        for name, values in devices.items():
            kept[name] = dict(values)
            for metric in _RARE:
                value = values.get(metric)
                if value is None:
                    continue
                told, at = self._told.get((who, name, metric), (-1.0, 0.0))
                if told == value and now - at < CAPACITY_SECONDS:
                    del kept[name][metric]
                else:
                    self._told[who, name, metric] = (value, now)
        return kept

    def _news(self, who: str, others: dict[str, list[OtherProcess]]) -> list[OtherProcess] | None:
        """Returns the others when they have changed: somebody came or went, or grew or shrank by much."""
        if not others:
            return None
        known = self._told_others.get(who, [])
        present = [process for processes in others.values() for process in processes]
        # Of a device that does not tell for a moment nobody has gone.
        present += [process for process in known if process.device not in others]
        sizes = {(process.device, process.pid): process.used for process in known}
        same = len(sizes) == len(present) and all(
            abs(process.used - sizes.get((process.device, process.pid), -2 * _MOVED)) < _MOVED for process in present
        )
        if same:
            return None
        self._told_others[who] = present
        return present
