"""A run as one Parquet file: its points as a table for any tool, and all the rest in the file's metadata.

The table has the columns ``metric``, ``rank`` (null where there is none), ``device``, ``step`` (null where it is not
known), ``time`` and ``value``, series after series, each in the order in which its points came. NaN and ±Infinity are
themselves. The metadata's key ``trainwatch`` holds the rows of the run's other tables as MessagePack in Base64.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainwatch.server.db import Database
from trainwatch.server.models import NO_RANK
from trainwatch.server.settings import Refused
from trainwatch.server.store import archiving, removal
from trainwatch.server.store.archiving import Curve
from trainwatch.server.store.codec import Columns, join

SUFFIX: Final = ".parquet"
_KEY: Final = b"trainwatch"
_VERSION: Final = 1
_ROW_GROUP: Final = 1 << 20


def write(database: Database, run: str, target: Path) -> int:
    """Writes a run to a file, as it is at one moment.

    Args:
        database: The database.
        run: The run's id.
        target: The file to make; one that is there is replaced.

    Returns:
        How many points it holds.

    Raises:
        Refused: There is no such run.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = target.with_name(f".{target.name}.part")
    total = 0
    try:
        with database.read() as connection:
            rows = archiving.rows_of(connection, run)
            if not rows:
                raise Refused(f"There is no run {run!r}.")
            counters = archiving.counters_of(connection, run)
            content: dict[str, Any] = {
                "version": _VERSION,
                "tables": rows,
                "series": [[*name, values] for name, values in counters.items()],
            }
            packed = base64.b64encode(msgspec.msgpack.encode(content))
            schema = pa.schema(
                [
                    ("metric", pa.dictionary(pa.int32(), pa.string())),
                    ("rank", pa.int32()),
                    ("device", pa.dictionary(pa.int32(), pa.string())),
                    ("step", pa.int64()),
                    ("time", pa.float64()),
                    ("value", pa.float64()),
                ],
                metadata={_KEY: packed},
            )
            with pq.ParquetWriter(part, schema, compression="zstd") as writer:
                for curve in archiving.curves_of(connection, run):
                    if len(curve.points.step):
                        writer.write_table(_table(curve, schema), row_group_size=_ROW_GROUP)
                        total += len(curve.points.step)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return total


def read(database: Database, source: Path) -> tuple[str, int]:
    """Makes a run from a file that :func:`write` made; all or nothing.

    Returns:
        The run's id, and how many points it has.

    Raises:
        Refused: The file is no archive of a run, or the run is there already.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        found = msgspec.msgpack.decode(base64.b64decode(file.schema_arrow.metadata[_KEY]))
        [row] = found["tables"]["runs"]
        run = str(row["id"])
        counters = {tuple(name): values for *name, values in found["series"]}
    except (pa.ArrowException, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Refused(f"{source} is no archive of a run: {error}") from None
    if found["version"] > _VERSION:
        raise Refused(f"{source} was made by a newer version of TrainWatch: upgrade this one.")
    with database.write() as connection:
        if archiving.exists(connection, run):
            raise Refused(f"The run {run!r} is there already: delete it first, if the archive is to replace it.")
        removal.undelete(connection, run)
        archiving.put_rows(connection, found["tables"])
        total = 0
        parts: list[Columns] = []
        name: tuple[str, int, str] | None = None
        for group in range(file.num_row_groups):
            its_own, columns = _columns(file.read_row_group(group))
            if name is not None and its_own != name:
                archiving.put_curve(connection, run, Curve(*name, join(parts)), counters[name])
                parts = []
            name = its_own
            parts.append(columns)
            total += len(columns.step)
        if name is not None:
            archiving.put_curve(connection, run, Curve(*name, join(parts)), counters[name])
    return run, total


def _table(curve: Curve, schema: Any) -> Any:
    import pyarrow as pa

    count = len(curve.points.step)
    rank = pa.nulls(count, pa.int32()) if curve.rank == NO_RANK else pa.array(np.full(count, curve.rank, np.int32))
    same = pa.array(np.zeros(count, np.int32))
    return pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(same, pa.array([curve.metric])),
            rank,
            pa.DictionaryArray.from_arrays(same, pa.array([curve.device])),
            pa.array(curve.points.step, mask=curve.points.step < 0),
            pa.array(curve.points.time),
            pa.array(curve.points.value),
        ],
        schema=schema,
    )


def _columns(table: Any) -> tuple[tuple[str, int, str], Columns]:
    rank = table["rank"][0].as_py()
    name = (str(table["metric"][0].as_py()), NO_RANK if rank is None else int(rank), str(table["device"][0].as_py()))
    step = table["step"].combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
    return name, Columns(
        step.astype(np.int64), table["time"].to_numpy().astype(np.float64), table["value"].to_numpy().astype(np.float64)
    )
