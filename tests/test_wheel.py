"""The wheel in an empty environment, with an empty home and no compiler: `make test-wheel` builds it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dissector.runs import CAPTURES
from tools.kernels import LEVELS

pytestmark = pytest.mark.wheel
DEMO = CAPTURES[0].parent / "demo.pcap"
ROWS = """
import ctypes, functools, hashlib, json, sys, warnings
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.kernels import kernel, library
from amqpscope.dissector.reading import Reading
from amqpscope.pipelines.run import local

warnings.simplefilter("error", kernel.FallbackWarning)
level, compiled, *captures = json.load(sys.stdin)
library.opened = functools.cache(lambda: ctypes.PyDLL(library.FOLDER / f"{level}.so"))
kernel.COMPILE_ABOVE = 0 if compiled else 1 << 60
kernel.COMPILE_COLD_ABOVE = 1 << 60
for capture in captures:
    found = []
    reading = Reading(find([capture]), compiled=compiled)
    local.walk_captures(reading, lambda table, rows: found.extend(repr((table, row)) for row in rows.to_pylist()))
    print(hashlib.sha256(repr(sorted(found)).encode()).hexdigest())
print(len(kernel._ready), [name for name in ("numba", "llvmlite") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds the wheel, and nothing that it does not require."""
    (wheel,) = Path(os.environ["AMQPSCOPE_WHEEL"]).glob("*.whl")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", wheel], check=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of a user whose home is empty, and stays so."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield {"HOME": str(folder), "PATH": os.environ["PATH"]}
    assert list(folder.iterdir()) == []


def run(environment: Path, home: dict[str, str], *words: object, given: str = "") -> tuple[str, str]:
    command = [environment / "bin" / words[0], *words[1:]]
    done = subprocess.run(
        list(map(str, command)), env=home, input=given, capture_output=True, text=True, check=True, cwd=home["HOME"]
    )
    return done.stdout, done.stderr


def test_it_needs_no_compiler(environment: Path, home: dict[str, str]) -> None:
    code = "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    listed = run(environment, home, "python", "-c", code)[0].split()
    assert "amqpscope" in listed
    assert {"numba", "llvmlite"}.isdisjoint(listed)


@pytest.mark.parametrize("level", LEVELS[os.uname().machine])
def test_all_kernels_are_there_and_make_the_same_rows(level: str, environment: Path, home: dict[str, str]) -> None:
    made: dict[bool, list[str]] = {}
    for compiled in (True, False):
        given = json.dumps([level, compiled, *map(str, CAPTURES)])
        made[compiled] = run(environment, home, "python", "-c", ROWS, given=given)[0].splitlines()
    assert made[True][:-1] == made[False][:-1]
    assert int(made[True][-1].split()[0]) > 70
    assert made[True][-1].endswith("[]")


def test_the_first_run_is_like_the_second(environment: Path, home: dict[str, str], tmp_path: Path) -> None:
    printed = [run(environment, home, "amqpscope", "dissect", DEMO, "-o", tmp_path / name) for name in ("1", "2")]
    assert printed[0][0] == printed[1][0]
    assert "compiling" not in printed[0][1] + printed[1][1]
