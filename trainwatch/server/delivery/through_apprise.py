"""Everything else, through Apprise: e-mail, Discord, Teams, Telegram, ntfy, PagerDuty, DingTalk, Feishu, WeCom, …

Apprise brings its own ways to connect. So it works in a process of its own (:mod:`.apprise_process`), in which no
connection is made but to an address that was checked, and which is ended when it takes too long.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import unquote

from trainwatch.server.delivery.kinds import Context, Kind
from trainwatch.server.delivery.notice import Message
from trainwatch.server.delivery.retry import Answer, judge

SECONDS: Final = 20.0
"""How long Apprise may take in all."""

_NAMES: Final = """
    azure bark barks betterstack brevo chanify cliq dingtalk discord feishu fcm flock gchat goalert goalerts gotify
    gotifys groupme guilded hassio hassios ifttt ilert incidentio jira join kook lark line mailgun mailto mailtos matrix
    matrixs mmost mmosts msteams nctalk nctalks ntfy ntfys o365 onesignal opsgenie pagerduty pagertree pbul
    postmark pover prowl pushdeer pushdeers pushed pushme pushplus pushward pushy qq resend revolt ringc rocket rockets
    schan sendgrid ses signal signals signl4 simplepush slack smtp2go sns sparkpost spike splunk spush squadcast
    synology synologys tgram threema twilio twist viber victorops vonage webex wechat wecom wecombot whatsapp
    workflow workflows wxpusher wxteams xmatters zalo zoom zulip
"""
SERVICES: Final = frozenset(_NAMES.split())
"""Apprise's names of the services that may be used. Not: what stays on the server's own machine (syslog, dbus, …), what
runs something, and json, xml and form, which a webhook does better."""

_FORBIDDEN: Final = frozenset({"template", "pgp", "pgpkey", "pgppub", "pgpprv", "keyfile", "subfile", "attach", "file"})
"""Options that name files of the server."""
_NO_LETTER: Final = re.compile(r"[^a-z0-9]+")
_STATUS: Final = re.compile(r"error=(\d{3})\b")
_SECRET_LENGTH: Final = 6


class ThroughApprise(Kind):
    """Hands a message to Apprise."""

    name = "apprise"

    def check(self, secret: dict[str, Any]) -> None:
        """See :meth:`Kind.check`."""
        url = str(secret.get("url", "")).strip()
        scheme, separator, rest = url.partition("://")
        if not separator or not rest or not url.isprintable():
            raise ValueError("An Apprise address begins like mailto:// or discord://; docs/alerts.md has examples.")
        name = scheme.lower()
        if name in ("http", "https", "json", "jsons", "xml", "xmls", "form", "forms"):
            raise ValueError(f"{name}:// is not for Apprise: add a channel of the kind webhook or slack.")
        if name not in SERVICES:
            raise ValueError(f"Apprise's {name[:30]}:// cannot be used here; docs/alerts.md lists what can.")
        # More than a URL's grammar calls options, since Apprise has a grammar of its own, and takes even more for some.
        pieces = re.split("[?&;#]", f"{rest};{unquote(rest)}")
        options = {_NO_LETTER.sub("", piece.partition("=")[0].lower()) for piece in pieces if "=" in piece}
        named = sorted(_FORBIDDEN & options)
        if named:
            raise ValueError(f"The option {named[0]!r} names a file of the server, which a channel may not.")
        if find_spec("apprise") is None:
            raise ValueError("Apprise is not installed on the server: pip install apprise.")

    def mask(self, secret: dict[str, Any]) -> str:
        """See :meth:`Kind.mask`."""
        return str(secret.get("url", "")).partition("://")[0].lower() + "://…"

    def send(self, secret: dict[str, Any], message: Message, context: Context) -> Answer:
        """See :meth:`Kind.send`."""
        url = str(secret["url"])
        try:
            self.check(secret)
        except ValueError as error:
            return Answer("disable", error=str(error))
        severities = [notice.severity for notice in message.notices if notice.change != "resolved"]
        wanted = {
            "url": url,
            "title": message.title,
            "body": message.text(),
            "type": _type_of(message, severities),
            "allowed": context.guard.addresses_of_names(),
        }
        # Not the server's environment: it holds secrets, and may name a proxy that is inside.
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "SSL_CERT_FILE") if name in os.environ}
        kept["NETRC"] = os.devnull  # nor the passwords of whoever runs it
        command = [sys.executable, "-m", "trainwatch.server.delivery.apprise_process"]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(wanted),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                env=kept,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer("retry", error="The receiver did not answer in time.")
        try:
            said = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            return Answer("retry", error=f"Apprise ended without a word (status {done.returncode}).")
        return _answer(said, url)


def _type_of(message: Message, severities: list[str]) -> str:
    if message.kind == "test":
        return "info"
    if not severities:
        return "success"
    return {"critical": "failure", "warning": "warning"}.get(_worst(severities), "info")


def _worst(severities: list[str]) -> str:
    return next((name for name in ("critical", "warning") if name in severities), "info")


def _answer(said: dict[str, Any], url: str) -> Answer:
    error = scrub(str(said.get("error", "")), url)[:300]
    if said.get("sent"):
        return Answer("sent")
    if said.get("forbidden"):
        return Answer("disable", error=f"The address may not be reached: {error}.")
    if said.get("invalid"):
        return Answer("disable", error=f"Apprise does not understand the address. {error}".strip())
    found = _STATUS.search(error)
    if found is None:
        return Answer("retry", error=f"Apprise could not deliver: {error or 'it does not say why.'}")
    status = int(found.group(1))
    verdict = judge(status)
    return Answer("retry" if verdict == "sent" else verdict, status, f"Apprise could not deliver: {error}")


def scrub(text: str, url: str) -> str:
    """Takes out of a text what may be secret in an address."""
    for piece in sorted(set(re.split(r"[/:@?&=,#]+", f"{url}/{unquote(url)}")), key=len, reverse=True):
        if len(piece) >= _SECRET_LENGTH:
            text = text.replace(piece, "…")
    return text
