"""Slack: blocks with what, which run, values, the loss as a line of text, and links as buttons."""

from __future__ import annotations

import json
from typing import Any, Final

from trainwatch.rules.wording.telling import phrase
from trainwatch.server.delivery import http
from trainwatch.server.delivery.kinds import Context, Kind
from trainwatch.server.delivery.notice import Message, Notice, facts, spark
from trainwatch.server.delivery.retry import Answer

_COLORS: Final = {"info": "#4c8dd6", "warning": "#d9a400", "critical": "#d23b3b", "resolved": "#2e9e5b"}
_HEADER: Final = 150
_SECTION: Final = 2900
_FIELD: Final = 1900
_DIGEST_LINES: Final = 20


class Slack(Kind):
    """Posts to an incoming webhook of Slack, or of what speaks like it."""

    name = "slack"

    def check(self, secret: dict[str, Any]) -> None:
        """See :meth:`Kind.check`."""
        http.parse(str(secret.get("url", "")))

    def mask(self, secret: dict[str, Any]) -> str:
        """See :meth:`Kind.mask`."""
        return http.masked(str(secret.get("url", "")))

    def send(self, secret: dict[str, Any], message: Message, context: Context) -> Answer:
        """See :meth:`Kind.send`."""
        headers = {"Content-Type": "application/json; charset=utf-8", "X-TrainWatch-Delivery": message.id}
        body = json.dumps(payload(message), ensure_ascii=False).encode()
        return http.post(str(secret["url"]), body, headers, guard=context.guard, now=context.now)


def payload(message: Message) -> dict[str, Any]:
    """Returns what is posted."""
    if message.kind == "test":
        blocks = [_section(escape(message.text()))]
        color = _COLORS["info"]
    elif message.kind == "digest":
        blocks, color = _digest(message), _COLORS[_worst(message)]
    else:
        [notice] = message.notices
        blocks = _single(notice, message.language)
        color = _COLORS["resolved" if notice.change == "resolved" else notice.severity]
    buttons = _buttons(message)
    if buttons:
        blocks.append({"type": "actions", "elements": buttons})
    blocks.append({"type": "context", "elements": [_markdown(f"TrainWatch · `{message.id}`")]})
    # The text is what notifications on a phone show; the colour comes only with an attachment.
    return {"text": escape(message.line[:_SECTION]), "attachments": [{"color": color, "blocks": blocks}]}


def escape(text: str) -> str:
    """Escapes what Slack reads as markup: a run's name may not ring everybody's phone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _single(notice: Notice, language: str) -> list[dict[str, Any]]:
    title = f"{notice.emoji} {notice.headline(language)}"
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(title, _HEADER), "emoji": True}},
        _section(escape(notice.sentence)),
        {
            "type": "section",
            "fields": [
                _markdown(f"*{escape(name)}*\n{escape(value)}"[:_FIELD]) for name, value in facts(notice, language)
            ],
        },
    ]
    line = spark(notice.run.line[1])
    if line:
        blocks.append(_section(f"{phrase('loss', language)} `{line}`"))
    return blocks


def _digest(message: Message) -> list[dict[str, Any]]:
    header = {"type": "plain_text", "text": _cut(message.title, _HEADER), "emoji": True}
    blocks: list[dict[str, Any]] = [{"type": "header", "text": header}]
    for notice in message.notices[:_DIGEST_LINES]:
        name = escape(notice.run.name)
        run = f"<{notice.run.url}|{name.replace('|', '¦')}>" if notice.run.url else name
        what = notice.headline(message.language).removesuffix(f"{phrase('colon', message.language)}{notice.run.name}")
        blocks.append(_section(f"{notice.emoji} *{escape(what)}* · {run}\n{escape(notice.sentence)}"))
    rest = len(message.notices) - _DIGEST_LINES
    if rest > 0:
        blocks.append(_section(phrase("more", message.language, count=rest)))
    return blocks


def _buttons(message: Message) -> list[dict[str, Any]]:
    buttons = []
    if message.kind == "alert" and message.notices[0].run.url:
        buttons.append(_button(phrase("open_run", message.language), message.notices[0].run.url, "primary"))
    if message.settings_url:
        buttons.append(_button(phrase("open_settings", message.language), message.settings_url))
    return buttons


def _button(label: str, url: str, style: str = "") -> dict[str, Any]:
    button: dict[str, Any] = {"type": "button", "text": {"type": "plain_text", "text": label}, "url": url}
    return button | ({"style": style} if style else {})


def _worst(message: Message) -> str:
    firing = [notice.severity for notice in message.notices if notice.change != "resolved"]
    return next((name for name in ("critical", "warning", "info") if name in firing), "resolved")


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _markdown(text)}


def _markdown(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": _cut(text, _SECTION)}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
