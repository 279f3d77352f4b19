"""``trainwatch halt``: stops a run with a checkpoint, through its server or on the machine where it trains."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from trainwatch import settings
from trainwatch.cli.terminal import Failure, Mistake, say, settings_with
from trainwatch.local import NoRedirect

_SECONDS: Final = 5.0
_EVERY: Final = 0.2


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("halt", parents=[home], help="stop a run at its next step, with a checkpoint")
    parser.add_argument("run_id", metavar="RUN", help="the run's id, as its page and its journal's folder have it")
    parser.add_argument("--reason", default="", metavar="TEXT", help="shown on the run's page and in its log")
    parser.add_argument("--checkpoint-only", action="store_true", help="save a checkpoint, and go on training")
    parser.add_argument("--wait", action="store_true", help="until it has stopped, or saved")
    parser.add_argument("--server", metavar="URL", help=f"the server's address (default: {settings.DEFAULT_SERVER})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Gives the command, and says how it gets to the run."""
    if not settings.is_name(options.run_id):
        raise Mistake(f"{options.run_id!r} can be no run's id: the run's page shows it")
    home = None if options.home is None else str(options.home)
    chosen = settings_with({"TRAINWATCH_HOME": home, "TRAINWATCH_SERVER": options.server})
    action: Literal["halt", "checkpoint"] = "checkpoint" if options.checkpoint_only else "halt"
    done = "save a checkpoint" if options.checkpoint_only else "halt"
    server = _Server(chosen)
    before = server.ask(f"/api/runs/{quote(options.run_id)}")
    given = {"action": action, "reason": options.reason}
    if before is not None and server.ask(f"/api/runs/{quote(options.run_id)}/commands", given) is not None:
        say(f"Asked run {options.run_id} through {chosen.server} to {done}; it hears of it within seconds.")
        if options.wait:
            _wait_for_server(server, options.run_id, action, before)
        return 0
    folders = sorted(path.parent for path in chosen.journals.glob(f"{options.run_id}/*/project"))
    if not folders:
        raise Mistake(f"{server.problem}, and there is no run {options.run_id!r} in {chosen.journals} either")
    here = _Here(folders)
    if here.over:
        raise Failure(f"the run is over: {here.over}")
    here.order(options.run_id, action, options.reason)
    say(f"{server.problem[:1].upper()}{server.problem[1:]}.")
    say(
        f"Asked run {options.run_id} to {done}, in {chosen.journals / options.run_id}; it hears of it at its next step."
    )
    if options.wait:
        here.wait(action)
    return 0


_opener: Final = urllib.request.build_opener(NoRedirect)


class _Server:
    """The server's API, as far as it is needed."""

    def __init__(self, chosen: settings.Settings) -> None:
        self._chosen = chosen
        self.problem = ""

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Asks; returns None when the server is away, or does not know the run."""
        url = self._chosen.server + path
        headers = {"Content-Type": "application/json"}
        if self._chosen.token:
            headers["Authorization"] = f"Bearer {self._chosen.token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with _opener.open(urllib.request.Request(url, data, headers), timeout=_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 409, 422):
                raise Failure(_detail(error)) from None
            self.problem = f"{self._chosen.server} does not know the run (answer {error.code})"
        except (OSError, ValueError) as error:
            self.problem = f"{self._chosen.server} does not answer ({getattr(error, 'reason', error)})"
        return None


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (OSError, ValueError, KeyError):
        return f"the server refused it (answer {error.code})"


def _wait_for_server(server: _Server, run_id: str, action: str, before: dict[str, Any]) -> None:
    saved = {(one["step"], one["time"]) for one in before["checkpoints"]}
    while True:
        time.sleep(_EVERY)
        now = server.ask(f"/api/runs/{quote(run_id)}")
        if now is None:
            continue  # away for a moment; the run hears of the command all the same
        new = [one for one in now["checkpoints"] if (one["step"], one["time"]) not in saved]
        if action == "checkpoint" and new:
            say(f"Saved after step {new[-1]['step']}: {new[-1]['path']}")
            return
        if now["state"] not in ("running", "late", "lost"):
            end = now["end"] or {"sentence": ""}
            say(end["sentence"] or f"The run {now['state']}.")
            if action == "checkpoint":
                raise Failure("the run was over before it saved a checkpoint")
            return


class _Here:
    """A run's journals on this machine, read as they grow.

    Args:
        folders: Its node folders.
    """

    def __init__(self, folders: list[Path]) -> None:
        from trainwatch.agent.ranks import Ranks
        from trainwatch.agent.tail import Tail

        self._folders = folders
        self._tails = [(Tail(folder), Ranks()) for folder in folders]
        self._sentence = ""
        self._saved: tuple[int, str] | None = None
        self._read()

    @property
    def over(self) -> str:
        """How the run ended; empty while a rank of it runs here."""
        now = time.time()
        running = (state for _, ranks in self._tails for state in ranks.running if state.is_alive(now))
        return "" if any(running) else self._sentence or "its processes are gone."

    def order(self, run_id: str, action: Literal["halt", "checkpoint"], reason: str) -> None:
        """Writes a command for all of the run's nodes that keep their journals here."""
        from trainwatch.agent.control import ControlFile
        from trainwatch.shipment import Command, local_id

        command = Command(id=local_id("by hand", uuid.uuid4().hex), run=run_id, action=action, reason=reason)
        try:
            for folder in self._folders:
                ControlFile(folder).add(command)
        except OSError as error:
            raise Failure(str(error)) from None
        self._saved = None

    def wait(self, action: str) -> None:
        """Waits until it was obeyed."""
        while True:
            time.sleep(_EVERY)
            self._read()
            if action == "checkpoint" and self._saved is not None:
                say(f"Saved after step {self._saved[0]}: {self._saved[1]}")
                return
            if self.over:
                say(self.over)
                if action == "checkpoint":
                    raise Failure("the run was over before it saved a checkpoint")
                return

    def _read(self) -> None:
        from trainwatch.events import CheckpointSaved, RunEnded
        from trainwatch.rules.halting import halt_sentence

        for tail, ranks in self._tails:
            for source in tail.scan():
                ranks.add(source)
            while taken := tail.take():
                for source, event in taken:
                    ranks.observe(source, event)
                    if isinstance(event, CheckpointSaved):
                        self._saved = event.step, event.path
                    elif isinstance(event, RunEnded):
                        ending = f"it {event.outcome} at step {event.step}."
                        if event.outcome == "halted":
                            ending = halt_sentence(event.reason, msgspec.to_builtins(event.parameters), step=event.step)
                        self._sentence = ending
