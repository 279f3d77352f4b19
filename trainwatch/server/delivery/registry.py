"""The kinds of channels that there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainwatch.server.delivery.kinds import Kind
from trainwatch.server.delivery.slack import Slack
from trainwatch.server.delivery.through_apprise import ThroughApprise
from trainwatch.server.delivery.webhook import Webhook

KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in (Slack(), Webhook(), ThroughApprise())}
