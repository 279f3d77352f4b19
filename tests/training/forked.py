"""Ranks as forks of one process (``python -m tests.training.forked RANKS SCRIPT ...``), instead of with torchrun.

Of what a training of three steps takes, nine tenths are the imports of torch and transformers, and torchrun's ranks and
torchrun itself each have their own. Here they are imported once. Like torchrun it says each rank who it is, ends all
when one fails, and has a store for them to meet at.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path


def forked(script: Path, *arguments: str, ranks: int, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a script on several ranks, each a process.

    Args:
        script: What each runs.
        arguments: Its arguments.
        ranks: How many.
        home: Where they record; None where nothing is.
    """
    environment = {**os.environ, "TRAINWATCH_AGENT": "0", "OMP_NUM_THREADS": "1"}
    environment |= {} if home is None else {"TRAINWATCH_HOME": str(home)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "tests.training.forked", str(ranks), str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)


def main() -> int:
    ranks, *sys.argv = int(sys.argv[1]), *sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {**place, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    import transformers

    import tests.training.tiny  # noqa: F401

    assert transformers.Trainer
    children = set()
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            _run(sys.argv[0])
        children.add(child)
    failed = 0
    while children:
        child, status = os.wait()
        children.discard(child)
        if status and not failed:
            failed = 1
            for other in children:
                os.kill(other, signal.SIGTERM)
    return failed


def _run(script: str) -> None:
    status = 1
    try:
        runpy.run_path(script, run_name="__main__")
        status = 0
    except BaseException:  # a fork must not go on in what its parent does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
