"""Ships events straight to a server, for tests that need more of them than a training makes in time."""

from __future__ import annotations

import time
import urllib.request
import zlib
from collections.abc import Sequence

import msgspec

from trainwatch import events
from trainwatch.shipment import Acknowledgement, Batch, Shipment


def ship(url: str, run: str, content: Sequence[events.Event], *, first: int = 0, rank: int = 0) -> None:
    """Sends events as one batch, and checks that the server took them all."""
    source = f"rank{rank}"
    batch = Batch(
        run=run,
        project="default",
        node="node",
        source=source,
        rank=rank,
        first=first,
        events=[msgspec.Raw(events.encode(event)) for event in content],
    )
    body = msgspec.msgpack.encode(Shipment(batches=[batch], node="node", sent_at=time.time(), runs=[run]))
    compressor = zlib.compressobj(1, wbits=31)
    request = urllib.request.Request(
        f"{url}/api/ingest",
        compressor.compress(body) + compressor.flush(),
        {"Content-Type": "application/msgpack", "Content-Encoding": "gzip"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        acknowledged = msgspec.msgpack.decode(answer.read(), type=Acknowledgement)
    assert acknowledged.next[run][source] == first + len(content)
