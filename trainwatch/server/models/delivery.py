"""Where alerts go: channels, silences, and what is still to be delivered.

All times are by the server's clock.
"""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, Integer, Table
from sqlalchemy import UniqueConstraint as Unique

from trainwatch.server.db import Document, Words, metadata
from trainwatch.server.models.columns import Id

channels = Table(
    "channels",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("project", Words, nullable=False, comment="Whose alerts; empty: of all projects."),
    Column("name", Words, nullable=False),
    Column("kind", Words, nullable=False, comment="slack, webhook, apprise."),
    Column("secret", Document, nullable=False, comment="Address and key; no answer of the API holds them."),
    Column("least", Words, nullable=False, comment="The lowest severity that it is told of."),
    Column("rules", Words, nullable=False, comment="Patterns of rule ids, with spaces between; empty: all rules."),
    Column("send_resolved", Boolean, nullable=False),
    Column("language", Words, nullable=False),
    Column("quiet", Document, nullable=False, comment="Time zone, start, end; nothing: never quiet."),
    Column("digest_most", Integer, nullable=False, comment="Messages in a window, before the rest is gathered."),
    Column("digest_seconds", Double, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("disabled_reason", Words, nullable=False, comment="Why the server disabled it; empty: it did not."),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Index(None, "project"),
)

silences = Table(
    "silences",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("project", Words, nullable=False),
    Column("rule", Words, nullable=False, comment="Pattern of rule ids; empty: all rules."),
    Column("run", Words, nullable=False, comment="Pattern of run ids or names; empty: all runs."),
    Column("reason", Words, nullable=False),
    Column("until", Double, nullable=False, comment="Infinity: for ever."),
    Column("created_at", Double, nullable=False),
    Index(None, "project"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("uuid", Words, nullable=False, comment="The delivery id that the receiver sees."),
    Column("channel", Id, ForeignKey("channels.id", ondelete="CASCADE"), nullable=False),
    Column("alert", Id, ForeignKey("alerts.id", ondelete="CASCADE"), comment="NULL: of a digest, or a test."),
    Column("run", Words, ForeignKey("runs.id", ondelete="CASCADE")),
    Column("change", Words, nullable=False, comment="fired, raised, resolved; digest, test."),
    Column("severity", Words, nullable=False),
    Column("content", Document, nullable=False, comment="The alert as it was at the change."),
    Column("state", Words, nullable=False, comment="waiting, sent, failed, suppressed, gathered."),
    Column("reason", Words, nullable=False, comment="Why it waits, failed or was suppressed."),
    # No foreign key: a digest is newer than what it gathers, so a copy in order would come to the members first.
    Column("digest", Id, comment="What it was gathered into."),
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("done_at", Double),
    Column("attempts", Integer, nullable=False),
    Column("lease", Words, nullable=False, comment="Who sends it just now; empty: nobody."),
    Column("lease_until", Double, nullable=False),
    Unique("uuid"),
    Index(None, "state", "due_at"),
    Index(None, "channel", "done_at"),
    Index(None, "alert"),
    Index(None, "run"),
    Index(None, "digest"),
)

delivery_attempts = Table(
    "delivery_attempts",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("delivery", Id, ForeignKey("deliveries.id", ondelete="CASCADE"), nullable=False),
    Column("at", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("status", Integer, comment="HTTP's; NULL where no answer came or the channel has none."),
    Column("error", Words, nullable=False, comment="Empty: it was taken."),
    Index(None, "delivery"),
)
