"""Lists that become tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Row(Protocol):
    """What has a row in a table."""

    def as_row(self) -> dict[str, Any]:
        """Returns column to value."""


T = TypeVar("T", bound=Row)


class Listing(Sequence[T]):
    """A list of what the server knows, which can be a table.

    Args:
        items: What is listed.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = tuple(items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Listing[T]: ...
    def __getitem__(self, index: int | slice) -> T | Listing[T]:
        """Returns one, or a part of the list."""
        return Listing(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __len__(self) -> int:
        """Returns how many there are."""
        return len(self._items)

    def __repr__(self) -> str:
        """Names the first ones."""
        shown = ",\n ".join(repr(item) for item in self._items[:10])
        return f"[{shown}{f', … {len(self) - 10} more' if len(self) > 10 else ''}]"

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a data frame with a row for each.

        Raises:
            ImportError: pandas is not installed.
        """
        return needed("pandas").DataFrame([item.as_row() for item in self._items])

    def to_arrow(self) -> pyarrow.Table:
        """Returns an Arrow table with a row for each.

        Raises:
            ImportError: pyarrow is not installed.
        """
        return needed("pyarrow").Table.from_pylist([item.as_row() for item in self._items])


def needed(name: str) -> Any:
    """Imports an optional package.

    Raises:
        ImportError: It is not installed; the message says how to get it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}, which is not installed: pip install {name}") from error


def number(value: Any) -> Any:
    """Reads a number that the API spells as a string where JSON has no form for it; anything else stays."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
