"""Whether all kernels are compiled before anybody needs them."""

import ast
from pathlib import Path

from tools import kernels

ROOT = Path(__file__).parents[1]
OTHERS = {"_kernel", "follow"}
"""Names of attributes that hold a kernel: of scanners, and of a recogniser that only plug-ins use."""


def called() -> set[str]:
    """The names of kernels that Python calls compiled."""
    found = set()
    for package in ("dissector", "pipelines"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Name("call") | ast.Attribute(attr="call"), args=[_, ast.Constant(False), *_]
                    ):
                        pass
                    case ast.Call(
                        func=ast.Name("call") | ast.Attribute(attr="call"),
                        args=[ast.Name(name) | ast.Attribute(attr=name), _, *_],
                    ):
                        found.add(name)
    return found


def test_all_that_python_calls_are_compiled_before() -> None:
    names = called()
    assert len(names) > 70
    assert names - OTHERS <= {function.__name__ for function, _ in kernels.wanted()}
