from __future__ import annotations

import pytest

from tests.matrix.contract import Playground

SLOW = "matrix_full"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the slow setups out unless they are asked for by name."""
    if SLOW in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker(SLOW)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(SLOW)]


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Playground:
    """Where the cells of this file's setups are played, each setup once."""
    return Playground(tmp_path_factory.mktemp("matrix"))
