"""A server's periodic work in a process that freezes itself in the middle of it; prints what came of its second half.

python -m tests.server.freezing DATABASE
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.server.test_periodic import note
from trainwatch.server.app import create_app
from trainwatch.server.jobs.runner import Job, Runner
from trainwatch.server.services import Services
from trainwatch.server.settings import Settings
from trainwatch.server.store.leases import Outdated


def main(database: str) -> None:
    """Does one job, and stops in it until somebody continues the process."""
    settings = Settings(home=Path(tempfile.gettempdir()), database=database, lease_seconds=1)
    services: Services = create_app(settings).state.services
    over = asyncio.Event()

    def work(services: Services) -> None:
        note(services, "first half")
        sys.stdout.write("frozen\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)  # this thread may go on for a moment before it is stopped too
        try:
            note(services, "second half")
            sys.stdout.write("done\n")
        except Outdated:
            sys.stdout.write("refused\n")
            raise
        finally:
            sys.stdout.flush()
            loop.call_soon_threadsafe(over.set)

    async def run() -> None:
        runner = Runner([Job("halves", 0.05, work)])
        runner.open(services)
        await over.wait()
        await runner.close(services.database)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(run())
    services.database.close()


if __name__ == "__main__":
    main(sys.argv[1])
