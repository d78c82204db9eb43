"""What kernels may rely on."""

from pathlib import Path

import numpy as np
import pytest

from dissector.arrays import Array
from dissector.kernel import call, is_cached, kernel, worthwhile


@kernel
def pick(data: Array, rows: Array, i: int) -> int:
    """Read with an index and with a pair of them."""
    return data[i] * 1000 + rows[i, i + 1] + rows.shape[1]


@pytest.mark.compiled
def test_indexes_are_unsigned_when_compiled() -> None:
    data, rows = np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3)
    assert call(pick, True, data, rows, 1) == call(pick, False, data, rows, 1) == 2008
    for index in (-1, -2, 2):
        with pytest.raises(IndexError):
            call(pick, True, data, rows, index)


def test_a_cache_in_somebody_elses_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert not is_cached()
    assert not worthwhile(None)
