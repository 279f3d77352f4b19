"""The server's log: one line an event, for people or as JSON for what collects logs, and never a secret in it.

The rest of the code logs with the standard library; fields go into ``extra``. What the request at hand is called, each
line says by itself.
"""

from __future__ import annotations

import logging
import re
import sys
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import IO, Any, Final

import structlog
from pydantic import SecretStr
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from structlog.typing import Processor

from trainwatch.server.settings import Settings

HIDDEN: Final = "[hidden]"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST: Final = 20_000  # a traceback; more helps nobody and costs whoever stores logs
_SHORTEST_SECRET: Final = 4  # hiding every "a" would hide the log, and protect nothing
# What looks like a secret, wherever it comes from: a header, an address with a password, a Slack hook, a setting.
_PATTERNS: Final = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), rf"\1 {HIDDEN}"),
    (re.compile(r"(\w://[^\s:/@]*):[^\s/@]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[^\s\"']+"), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"(?i)((?:token|password|passwd|secret|api[_-]?key|authorization|cookie|session|signature)\w*[\"']?"
            r"\s*[=:]\s*[\"']?)(?!\[hidden\]|bearer\b|basic\b)[^\s\"',;&})\]]+"
        ),
        rf"\1{HIDDEN}",
    ),
)


class Redact:
    """Hides secrets in every text of a line.

    Args:
        secrets: Texts that are secret wherever they stand, besides all that looks like a secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        """Is a structlog processor."""
        return {key: self._hide(value) for key, value in event.items()}

    def text(self, text: str) -> str:
        """Returns `text` without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {str(key): self._hide(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._hide(inner) for inner in value]
        return self.text(str(value))


def configure(settings: Settings, stream: IO[str] | None = None) -> None:
    """Sets up the log of this process; again and again, if need be.

    Other packages are heard from warnings on, unless everything is wanted.

    Args:
        settings: Form, level, and the secrets to hide.
        stream: Where to; standard error by default.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_formatter(settings))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level: int = getattr(logging, settings.log_level.upper())
    root.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
    logging.getLogger("trainwatch").setLevel(level)
    # uvicorn says each failure of ours with its traceback, which it should; it needs no handlers of its own for that.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def begin_request(given: str | None) -> str:
    """Names the request at hand, so that all of its lines say which it is.

    Args:
        given: What a proxy calls it (``X-Request-ID``); something unusable is replaced.

    Returns:
        Its name.
    """
    name = given if given is not None and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=name)
    return name


def request_id() -> str:
    """Returns the name of the request at hand; empty outside of one."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))


def _formatter(settings: Settings) -> logging.Formatter:
    json = settings.log_format == "json"
    final: Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if json
        else structlog.dev.ConsoleRenderer(
            colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time" if json else "timestamp"),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.StackInfoRenderer(),
            Redact(_secrets(settings)),
            final,
        ],
    )


def _secrets(settings: Settings) -> list[str]:
    """Returns the texts that must not be seen: secret settings, and the database's password in both spellings."""
    values = (getattr(settings, name) for name in type(settings).model_fields)
    found = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
    try:
        url = make_url(settings.database_url)
    except ArgumentError:
        return found
    if url.password is not None:
        found.append(str(url.password))
        found.append(url.render_as_string(hide_password=False).rpartition("@")[0].rpartition(":")[2])
    return found
