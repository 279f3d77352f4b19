"""Import: what other tools wrote about a training, read as the events that TrainWatch would have recorded.

One file a format. All readers hand back an :class:`ImportedRun`; a file that cannot be read raises
:class:`UnreadableError` with a sentence that says what is wrong and what to do.
"""

from __future__ import annotations

from trainwatch.importing.find import find
from trainwatch.importing.recorded import read_recorded
from trainwatch.importing.run import ImportedRun, OtherFileError, Point, UnreadableError
from trainwatch.importing.tell import read

__all__ = ["ImportedRun", "OtherFileError", "Point", "UnreadableError", "find", "read", "read_recorded"]
