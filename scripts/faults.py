"""Does bad things to servers, databases, networks and disks under load, and prints what came of each.

    python scripts/faults.py --times 50 server postgres

Each scenario prints one line of JSON: how many faults there were, how many events were acknowledged, how many steps are
stored, and how many were lost or are double (0 and 0, or the exit status is 1). ``--times`` is how often each fault is
done; without it, the number that the issue asks for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults import disks, network, scenarios  # noqa: E402
from tests.faults.load import Count  # noqa: E402
from tests.postgres import running_postgres  # noqa: E402


def _server_on_postgres(folder: Path, times: int) -> Count:
    with running_postgres() as postgres:
        count = scenarios.server_killed(folder, times, postgres.url)
    count.scenario += ", on Postgres"
    return count


SCENARIOS: Final[dict[str, tuple[Callable[[Path, int], Count], int, Callable[[], str]]]] = {
    "server": (scenarios.server_killed, 50, str),
    "server-postgres": (_server_on_postgres, 50, str),
    "postgres": (scenarios.postgres_killed, 20, str),
    "postgres-frozen": (scenarios.postgres_frozen, 5, str),
    "postgres-disk": (disks.postgres_disk_full, 3, disks.why_not),
    "frozen": (scenarios.replica_frozen, 5, str),
    "line": (scenarios.line_cut, 5, str),
    "network": (scenarios.network_cut, 5, network.why_not),
    "disk": (disks.server_disk_full, 3, disks.why_not),
    "node-disk": (disks.node_disk_full, 3, disks.why_not),
    "journal": (disks.journal_damaged, 200, str),
}
"""Name to what it does, how often by default, and why it cannot be done here."""


def main() -> None:
    """Runs the scenarios that were named, or all.

    Raises:
        SystemExit: Something was lost or is double.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(SCENARIOS)}; all of them")
    parser.add_argument("--times", type=int, help="how often each fault is done")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}")
    sound = True
    for name in arguments.scenarios or SCENARIOS:
        work, times, why_not = SCENARIOS[name]
        if why_not():
            sys.stdout.write(f'{{"scenario": "{name}", "skipped": "{why_not()}"}}\n')
            continue
        with tempfile.TemporaryDirectory(prefix="tw-faults-") as folder:
            count = work(Path(folder), arguments.times or times)
        sound = sound and count.sound
        sys.stdout.write(count.line() + "\n")
        sys.stdout.flush()
    raise SystemExit(0 if sound else 1)


if __name__ == "__main__":
    main()
