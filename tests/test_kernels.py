"""Whether all kernels are compiled before anybody needs them."""

import ast
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from amqpscope.dissector.kernels import kernel
from tools import kernels
from tools.rare import RARE

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


@pytest.mark.compiled
def test_all_that_python_calls_are_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that recordings need, and those that none needs."""
    names = called()
    assert len(names) > 70
    recorded: dict[tuple[Any, ...], Any] = {}
    for name, value in {"_ready": recorded, "is_cached": lambda folder=None: True, "COMPILE_ABOVE": 0}.items():
        monkeypatch.setattr(kernel, name, value)
    kernels.record()
    assert names - OTHERS <= {function.__name__ for function, *_ in [*recorded, *RARE]}


@pytest.mark.thorough
def test_no_recording_needs_others() -> None:
    with kernels.interpreted() as needed:
        kernels.record(path.name for path in kernels.CAPTURES.glob("*.pcap*"))
    with kernels.interpreted() as recorded:
        kernels.record()
    assert needed.keys() == recorded.keys()


def killed(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_ends_the_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, the system kills it, and nobody would compile what it had taken."""
    monkeypatch.setattr(kernels, "_compile", killed)
    monkeypatch.setattr(kernels, "cached", lambda call, level: None)
    with pytest.raises(BrokenProcessPool):
        kernels.compile_all([(called, ())], [None])
