"""Who is let in: tokens, and the sessions of browsers. Neither holds a secret; both hold hashes."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, Table
from sqlalchemy import UniqueConstraint as Unique

from trainwatch.server.db import Words, metadata

tokens = Table(
    "tokens",
    metadata,
    Column("id", Words, primary_key=True, comment="Public; the middle of tw_<id>_<secret>."),
    Column("digest", Words, nullable=False, comment="SHA-256 of the whole token, hexadecimal."),
    Column("name", Words, nullable=False, comment="For people."),
    Column("project", Words, nullable=False, comment="Empty: all projects."),
    Column("scopes", Words, nullable=False, comment="Of ingest, read, write, admin; separated by spaces."),
    Column("created_at", Double, nullable=False, comment="By the server's clock, as all times here."),
    Column("created_by", Words, nullable=False),
    Column("expires_at", Double, comment="NULL: never."),
    Column("revoked_at", Double),
    Column("last_used_at", Double, comment="Not newer than a minute; NULL: never used."),
    Index(None, "project"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Words, primary_key=True, comment="Public; for lists."),
    Column("digest", Words, nullable=False, comment="SHA-256 of what the cookie holds, hexadecimal."),
    Column("token", Words, ForeignKey("tokens.id", ondelete="CASCADE"), comment="The token it was exchanged for."),
    Column("origin", Words, nullable=False, comment="token; installation:HASH of its token; oidc:ISSUER."),
    Column("name", Words, nullable=False, comment="Of the person; these three are the token's where there is one."),
    Column("project", Words, nullable=False),
    Column("scopes", Words, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("last_used_at", Double),
    Unique("digest"),
    Index(None, "token"),
)
