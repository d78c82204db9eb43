"""What kernels may rely on."""

import dis
import hashlib
import json
import marshal
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from amqpscope.dissector.capture.sources import Source, find
from amqpscope.dissector.cli.precompile import compile_kernels
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels import machine_code
from amqpscope.dissector.kernels.kernel import call, is_cached, note_run, worthwhile
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tcp import arrival
from tests.dissector.kernels import cars, pick
from tests.dissector.lanes import LANE
from tests.dissector.runs import FOLDER


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
from amqpscope.dissector.kernels.kernel import call
from tests.dissector.kernels import cars, pick
from tests.dissector.lanes import LANE

data, rows = np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3)
reported = [call(pick, True, data, rows, 1), call(pick, True, data, rows, 1), "numba" in sys.modules]
try:
    call(pick, True, data, rows, 2)
except IndexError as error:
    reported.append(str(error))
print(json.dumps(reported))
"""


def in_a_process_of_its_own(cache: Path, **names: str) -> Any:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)} | names
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True)
    return json.loads(done.stdout)


@pytest.mark.compiled
def test_what_was_compiled_is_run_again_without_numba(tmp_path: Path) -> None:
    first, second, with_numba, error = in_a_process_of_its_own(tmp_path)
    assert (first, second, with_numba) == (2008, 2008, True)
    assert in_a_process_of_its_own(tmp_path) == [2008, 2008, False, error]
    (file,) = tmp_path.rglob("pick.*")
    data = file.read_bytes()
    file.write_bytes(data[:100] + b"?" + data[101:])
    assert in_a_process_of_its_own(tmp_path) == [2008, 2008, True, error]
    assert in_a_process_of_its_own(tmp_path) == [2008, 2008, False, error]


@pytest.mark.compiled
def test_code_that_needs_what_is_not_there_is_not_loaded() -> None:
    assert machine_code.Code(b"", "entry", ["numba_nobody_knows"]).load() is None


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, as in a process that compiled nothing."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "_ready", {})
    monkeypatch.setattr(kernels, "_not_kept", set())
    cached = (kernels.cache_folder, kernels._marker, machine_code.host, machine_code._introduce)
    for function in cached:
        function.cache_clear()
    yield tmp_path
    for function in cached:
        function.cache_clear()


def fails(*_: object) -> Any:
    raise RuntimeError("not with this release")


def null(*_: object) -> int:
    return 0


def engine(**others: Any) -> Any:
    """Makes engines that do some things otherwise."""

    def made(*arguments: Any) -> Any:
        engine = llvm.create_mcjit_compiler(*arguments)
        names = ("add_object_file", "finalize_object", "get_function_address", "get_global_value_address")
        return SimpleNamespace(**{name: getattr(engine, name) for name in names} | others, engine=engine)

    return made


@pytest.mark.compiled
@pytest.mark.parametrize(
    "others",
    [
        {"add_symbol": fails},
        {"create_mcjit_compiler": fails},
        {"create_mcjit_compiler": engine(add_object_file=fails)},
        {"create_mcjit_compiler": engine(get_function_address=null)},
        {"create_mcjit_compiler": engine(get_global_value_address=null)},
        {"ObjectFileRef": None},
    ],
)
def test_where_code_cannot_be_loaded_or_kept_numba_calls_it(
    others: dict[str, Any], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba itself sees the true LLVM."""
    monkeypatch.setattr(machine_code, "llvm", SimpleNamespace(**vars(llvm) | others))
    data, rows = np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3)
    with pytest.warns(kernels.FallbackWarning, match="kernel pick: .* numba calls it"):
        assert call(pick, True, data, rows, 1) == 2008
    with pytest.raises(IndexError):
        call(pick, True, data, rows, 2)
    note_run()
    assert not is_cached()
    assert not list(empty.rglob("pick.*"))


@pytest.mark.compiled
@pytest.mark.usefixtures("empty")
def test_without_the_compiler_kernels_are_interpreted_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("amqpscope.dissector.kernels.compiling", raising=False)
    monkeypatch.setitem(sys.modules, "amqpscope.dissector.kernels.compiling", None)
    with pytest.warns(kernels.FallbackWarning, match="kernel pick: .* is interpreted"):
        assert call(pick, True, np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3), 1) == 2008


def test_kernels_that_stay_interpreted_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    for size in (kernels.COMPILE_COLD_ABOVE - 1, kernels.COMPILE_COLD_ABOVE):
        source = Source("big.pcap", "big.pcap", size, "big.pcap")
        assert not worthwhile(size)
        compile_kernels([source])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("amqpscope: no compiled kernels, so this is slow: ")
    assert "[compile]" in line and "make wheel" in line


@pytest.mark.compiled
def test_a_processor_whose_features_nobody_knows_has_code_of_its_own(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_code, "llvm", SimpleNamespace(**vars(llvm) | {"get_host_cpu_features": fails}))
    assert call(pick, True, np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3), 1) == 2008
    assert len(list(empty.rglob("pick.*"))) == 1


def test_what_is_kept_in_another_way_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernels._digest(pick)
    monkeypatch.setattr(kernels, "FORMAT", kernels.FORMAT + 1)
    assert kernels._digest.__wrapped__(pick) != before


@pytest.mark.compiled
def test_columns_are_numbers_where_their_module_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the digest by which compiled code is kept: another layout is another kernel."""
    lane = np.arange(10, 10 + LANE.WIDTH)
    assert call(cars, True, lane) == call(cars, False, lane) == 10 + LANE.CARS
    before = kernels._digest(cars)
    with monkeypatch.context() as changed:
        changed.setattr(LANE, "version", LANE.version + 1)
        assert kernels._digest.__wrapped__(cars) != before


def test_globals_of_kernels_are_those_that_dis_finds() -> None:
    for function in filter(callable, vars(arrival).values()):
        code = getattr(kernels.source(function), "__code__", None)
        if code is not None:
            wanted = [each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"]
            assert list(kernels._globals(code)) == wanted


@pytest.mark.compiled
def test_without_compiling_kernels_are_interpreted(tmp_path: Path) -> None:
    first, second, with_numba, _ = in_a_process_of_its_own(tmp_path, NUMBA_DISABLE_JIT="1")
    assert (first, second, with_numba) == (2008, 2008, True)


@pytest.mark.compiled
def test_code_of_another_shape_is_made_anew(tmp_path: Path) -> None:
    reported = in_a_process_of_its_own(tmp_path)
    (file,) = tmp_path.rglob("pick.*")
    for data in (b"", b"?", marshal.dumps(7), marshal.dumps((1, 2)), marshal.dumps((1, 2, 3, 4))):
        file.write_bytes(hashlib.sha256(data).digest() + data)
        assert in_a_process_of_its_own(tmp_path) == reported, data
    assert in_a_process_of_its_own(tmp_path) == [*reported[:2], False, reported[3]]


@pytest.mark.compiled
def test_kernels_count_as_cached_when_a_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was stopped has compiled some of them."""
    monkeypatch.setattr(kernels, "_marker", lambda folder=None: tmp_path / "marker")
    reading = Reading(find([str(FOLDER / "orders_pika.pcap")]), compiled=True)
    works = reading.work()
    next(works)
    assert not is_cached()
    for _ in works:
        pass
    assert is_cached()


def test_a_cache_without_a_home_is_none(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fails)
    assert not worthwhile(None)
    kernels.note_complete()
    assert not is_cached()


def test_a_cache_in_somebody_elses_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert not is_cached()
    assert not worthwhile(None)
