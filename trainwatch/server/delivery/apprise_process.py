"""Runs Apprise once, with every connection checked: reads a JSON document from its input, writes one to its output.

Apprise's services connect in ways of their own. What they have in common is the interpreter, which announces each
connection before it is made, and each file before it is opened; :func:`watch` refuses those that lead inside.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, Final

from trainwatch.server.delivery.addresses import Forbidden, Guard

_CONNECTING: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_PROGRAMS: Final = (".py", ".pyc", ".so", ".pyd")
_READ: Final = (
    "/usr/share/zoneinfo/",
    *(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Where Python and its packages lie, which read files of their own; and the time zones."""
_NEVER: Final = frozenset({"os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"})


def watch(guard: Guard, refused: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """Returns an audit hook that lets nothing out but to addresses that may be reached.

    Args:
        guard: Whom it may reach.
        refused: Filled with what was refused, in case that somebody catches the exception.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _NEVER:
            refused.append(event)
            raise Forbidden(f"{event} is none of a channel's business")
        if event == "open" and not _may_open(*arguments[:3]):
            refused.append("a file of the server")
            raise PermissionError("a channel may not open a file of the server")
        if event not in _CONNECTING or len(arguments) < 2 or arguments[1] is None:
            return
        address = arguments[1]
        try:
            if not isinstance(address, tuple):
                raise Forbidden("a file is not an address")
            guard.check(str(address[0]))
        except (Forbidden, ValueError) as error:
            refused.append(str(error))
            raise Forbidden(str(error)) from None

    return hook


def _may_open(path: Any, _mode: Any = None, flags: Any = None) -> bool:
    if isinstance(path, int) or path == os.devnull:
        return True
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return False
    real = os.path.realpath(os.fsdecode(path))
    return real.endswith(_PROGRAMS) or real.startswith(_READ) or real in mimetypes.knownfiles


class _Kept(logging.Handler):
    """Keeps what Apprise says went wrong."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a line."""
        self.lines.append(record.getMessage())


def deliver(wanted: dict[str, Any]) -> dict[str, Any]:
    """Sends one message and says what became of it."""
    import apprise
    from apprise.manager_attachment import AttachmentManager

    # Even whether a file is there, nobody is to learn by naming it.
    attachments: Any = AttachmentManager
    attachments().remove("file")
    kept = _Kept()
    logging.getLogger("apprise").addHandler(kept)
    asset = apprise.AppriseAsset(
        app_id="TrainWatch", app_desc="TrainWatch", storage_mode="memory", allow_templates=False, http_redirects=0
    )
    refused: list[str] = []
    sys.addaudithook(watch(Guard(wanted["allowed"]), refused))
    service = apprise.Apprise.instantiate(wanted["url"], asset=asset)
    if service is None:
        return {"sent": False, "invalid": True, "error": " ".join(kept.lines)}
    try:
        sent = bool(service.notify(body=wanted["body"], title=wanted["title"], notify_type=wanted["type"]))
    except Exception as error:
        sent, failed = False, type(error).__name__
    else:
        failed = ""
    if refused:
        return {"sent": sent, "forbidden": not sent, "error": refused[0]}
    return {"sent": sent, "error": " ".join(kept.lines) or failed}


def main() -> None:
    """Reads, sends, and says what became of it."""
    sys.stdout.write(json.dumps(deliver(json.load(sys.stdin))) + "\n")


if __name__ == "__main__":
    main()
