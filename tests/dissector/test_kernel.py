"""What kernels may rely on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.compiled
def test_arguments_of_other_types_have_code_of_their_own() -> None:
    square = np.arange(16).reshape(4, 4)
    rows = [square, square.T, square[::2, ::2], square.astype(np.int32), square.view()]
    rows[-1].flags.writeable = False
    for data in (np.array([3, 1], np.uint8), np.array([-3, -1]), np.arange(4)[::2], np.array([7, 2**63], np.uint64)):
        for matrix in rows:
            assert call(pick, True, data, matrix, 0) == call(pick, False, data, matrix, 0)


PROGRAM = """
import json, sys
import numpy as np
from dissector.kernel import call
from tests.dissector.test_kernel import pick

data, rows = np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3)
told = [call(pick, True, data, rows, 1), call(pick, True, data, rows, 1), "numba" in sys.modules]
try:
    call(pick, True, data, rows, 2)
except IndexError as error:
    told.append(str(error))
print(json.dumps(told))
"""


def in_a_process_of_its_own(cache: Path) -> Any:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True)
    return json.loads(done.stdout)


@pytest.mark.compiled
def test_what_was_compiled_is_run_again_without_numba(tmp_path: Path) -> None:
    first, second, with_numba, error = in_a_process_of_its_own(tmp_path)
    assert (first, second, with_numba) == (2008, 2008, True)
    assert in_a_process_of_its_own(tmp_path) == [2008, 2008, False, error]
    (file,) = tmp_path.rglob("pick.*")
    octets = file.read_bytes()
    file.write_bytes(octets[:100] + b"?" + octets[101:])
    assert in_a_process_of_its_own(tmp_path) == [2008, 2008, True, error]
    assert in_a_process_of_its_own(tmp_path) == [2008, 2008, False, error]


@pytest.mark.compiled
def test_code_that_needs_what_is_not_there_is_not_loaded() -> None:
    from dissector.native import Code  # noqa: PLC0415

    assert Code(b"", "entry", "environment", ["numba_nobody_knows"]).load() is None


def test_a_cache_in_somebody_elses_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert not is_cached()
    assert not worthwhile(None)
