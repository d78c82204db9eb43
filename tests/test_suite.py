"""Rules that all tests keep."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from amqpscope.dissector.kernels import kernel
from tests import oracles
from tests.dissector.kernels import pick

HERE = Path(__file__).parent
MODULES = sorted(HERE.rglob("test_*.py"))


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imported(path: Path) -> Iterator[str]:
    """The full names of modules that a module imports, and of what it imports from them."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_no_test_module_is_imported() -> None:
    """What tests share is in helper modules."""
    tests = {".".join(path.relative_to(HERE.parent).with_suffix("").parts) for path in MODULES}
    assert len(tests) > 50
    assert {path.name: found for path in HERE.rglob("*.py") if (found := tests & {*imported(path)})} == {}


def test_no_test_returns_early() -> None:
    """It would pass without having tested anything. It asserts, is skipped, or the case is not one of its own."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in MODULES
        for test in nodes(path)
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
        for node in ast.walk(test)
        if isinstance(node, ast.Return) and node.value is None
    ]
    assert found == []


def test_without_its_mark_no_test_runs_compiled_kernels() -> None:
    with pytest.raises(AssertionError, match="not marked `compiled`"):
        kernel.call(pick, True, np.array([1, 2], np.uint8), np.arange(6).reshape(2, 3), 1)
    assert not kernel.is_cached()


def test_without_its_mark_no_test_starts_spark() -> None:
    code = "from amqpscope.pipelines.spark.session import session; session('local[1]')"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode and "SessionError" in done.stderr


@pytest.mark.parametrize(
    ("oracle", "required", "outcome"),
    [
        ("no-such-program", "", pytest.skip.Exception),
        ("no-such-program", "1", pytest.fail.Exception),
        (oracles.SPECIFICATIONS / "no.xml", "1", pytest.fail.Exception),
        (Path("/nowhere/no.xml"), "1", pytest.skip.Exception),
    ],
)
def test_an_oracle_may_be_missing_where_it_is_not_required(
    oracle: str | Path, required: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(oracles.REQUIRED, required)
    with pytest.raises(outcome, match="is not installed"):
        oracles.look_for((sys.executable, oracle))
