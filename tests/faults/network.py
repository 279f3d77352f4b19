"""A network of its own for a server: two lines into it, each of which can be cut without a word to either end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def why_not() -> str:
    """Returns why there can be no network namespace here; empty when there can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    done = subprocess.run(["ip", "netns", "add", "tw-try"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", "tw-try"], capture_output=True)
    return done.stderr.strip()


class Cable:
    """A line between this machine and a namespace.

    Attributes:
        here: Address at this end.
        there: Address at the other.
    """

    def __init__(self, namespace: str, number: int) -> None:
        net = f"10.{os.getpid() % 200 + 20}.{number}"
        self.here, self.there = f"{net}.1", f"{net}.2"
        self._namespace = namespace
        self._near, self._far = f"tw{os.getpid() % 100_000}n{number}", f"tw{os.getpid() % 100_000}f{number}"
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", namespace)
        _ip("addr", "add", f"{self.here}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", namespace, "addr", "add", f"{self.there}/30", "dev", self._far)
        _ip("-n", namespace, "link", "set", self._far, "up")

    def cut(self) -> None:
        """From now on every packet is lost, both ways: each end writes to a hardware address that is nobody's."""
        for place, device, other in self._ends():
            _ip(*place, "neigh", "replace", other, "lladdr", "02:00:00:00:00:99", "dev", device, "nud", "permanent")

    def mend(self) -> None:
        """Packets arrive again."""
        for place, device, other in self._ends():
            _ip(*place, "neigh", "del", other, "dev", device)

    def _ends(self) -> list[tuple[list[str], str, str]]:
        return [([], self._near, self.there), (["-n", self._namespace], self._far, self.here)]


class Namespace:
    """A network namespace.

    Attributes:
        name: Its name.
        command: What a command is run with, inside.
        cables: Its lines to this machine.
    """

    def __init__(self, cables: int) -> None:
        self.name = f"tw-{os.getpid()}"
        self.command = ["ip", "netns", "exec", self.name]
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.cables = [Cable(self.name, number) for number in range(cables)]


@contextmanager
def namespace(cables: int) -> Iterator[Namespace]:
    """Makes a network namespace that is gone when the block ends.

    Args:
        cables: How many lines lead into it.
    """
    try:
        yield Namespace(cables)
    finally:
        subprocess.run(["ip", "netns", "del", f"tw-{os.getpid()}"], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
