"""What makes the tests quick; none of them needs it to pass.

The first two take two thirds off the processor time of `make unit`:

- One thread. Models as small as the tests' gain nothing from more, and where as many tests run as there are cores the
  threads wait for each other in busy loops. Processes that tests start inherit it.
- Accelerate collects garbage at the end of every training, and looks at the million objects that torch and transformers
  brought each time. Frozen, they are passed over.
- Files with slow tests begin first: one that came last would keep one worker busy while the others have nothing to do.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

_MANY_MODULES: Final = 100
_frozen_modules = 0


@pytest.fixture(scope="module", autouse=True)
def _passed_over_by_the_garbage_collector() -> None:
    global _frozen_modules
    if len(sys.modules) > _frozen_modules + _MANY_MODULES:
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files with slow tests first."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
