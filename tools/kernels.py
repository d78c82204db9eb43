"""Compile all kernels, before anybody needs them: `python -m tools.kernels [FOLDER]`.

Recordings of all protocols are dissected and analyzed with interpreted kernels, which shows for which types each kernel
is compiled. As many processes as there are processors then compile them: for this processor, to the user's cache; or,
for a wheel, to shared libraries in a folder, one for each kind of processor.
"""

import argparse
import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from platform import machine
from typing import Any

import numpy as np

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.reading import Reading
from amqpscope.pipelines.run import local
from tools.rare import RARE

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A kernel, and arguments of the types it is compiled for."""

ROOT = Path(__file__).parents[1]
CAPTURES = ROOT / "tests" / "captures"
RECORDED = (
    "demo.pcap", "failed_handshakes.pcap", "qpid_topology.pcap", "stream_chunks.pcap", "stream_errors.pcap",
    "tls_secrets.pcapng", "topology.pcap", "wrong_end_octet.pcap",
)  # fmt: skip
"""Recordings of all protocols. They need all kernels that any recording needs; others are in `tools.rare`."""
LEVELS = {"x86_64": ("x86-64-v2", "x86-64-v3"), "aarch64": ("generic",)}
"""Kinds of processors, as LLVM and GCC call them, by machine."""
PROCESSES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SAID_S = 10.0
"""Seconds between lines about how far this is, where they go to no terminal."""


def main(folder: Path | None) -> None:
    """Compile what is not cached, and link it for a wheel."""
    calls = wanted()
    if folder is None:
        compile_all(calls, [None])
        for each in (None, ROOT / "pipelines"):
            kernel.note_complete(each)
        return
    levels = LEVELS.get(machine(), ()) if sys.platform == "linux" else ()
    compile_all(calls, levels)
    for level in levels:
        link(calls, level, folder / f"{level}.so")


def wanted() -> list[Call]:
    """Return all kernels to compile."""
    with interpreted() as calls:
        record()
    return [*calls.values(), *rare(calls.values())]


# ------------------------------------------------------------------------------------------------------------ recording


@contextmanager
def interpreted() -> Iterator[dict[str, Call]]:
    """Interpret what would be compiled; yield those kernels by symbol, with arguments of the same types."""
    calls: dict[str, Call] = {}

    def made_ready(key: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        calls.setdefault(kernel.symbol(key[0], arguments), (key[0], like(arguments)))
        return lambda _, given, __: kernel.call(key[0], False, *given)

    others = {"_made_ready": made_ready, "is_cached": lambda folder=None: True, "COMPILE_ABOVE": 0}
    before = {name: getattr(kernel, name) for name in others}
    vars(kernel).update(others)
    try:
        yield calls
    finally:
        vars(kernel).update(before)


def record(names: Iterable[str] = RECORDED) -> None:
    """Dissect and analyze recordings."""
    for name in names:
        local.walk_captures(Reading(find([str(CAPTURES / name)]), compiled=True), lambda *_: None)


def like(argument: Any) -> Any:
    """Return an argument of the same type that holds nothing."""
    if isinstance(argument, tuple):
        return argument._make(map(like, argument)) if hasattr(argument, "_make") else tuple(map(like, argument))
    if not isinstance(argument, np.ndarray):
        return argument
    made = np.empty((4,) * argument.ndim, argument.dtype)
    if argument.flags.f_contiguous and not argument.flags.c_contiguous:
        made = made.T
    elif not argument.flags.c_contiguous:
        made = made[(slice(None, None, 2),) * argument.ndim]
    made.flags.writeable = argument.flags.writeable
    assert kernel._kind(made) == kernel._kind(argument)
    return made


def rare(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield the kernels of `RARE`; groups are taken from the recorded ones."""
    groups: dict[type, Any] = {}

    def gather(argument: Any) -> None:
        if isinstance(argument, tuple):
            groups.setdefault(type(argument), argument)
            for each in argument:
                gather(each)

    for _, arguments in calls:
        gather(arguments)
    for function, arguments in RARE:
        yield function, tuple(groups[a] if isinstance(a, type) else a for a in arguments)


# ------------------------------------------------------------------------------------------------------------ compiling


def compile_all(calls: Sequence[Call], levels: Sequence[str | None]) -> None:
    """Compile kernels that are not cached, in processes of their own, and say how far this is.

    Kernels of one package call the same others, which each process types once: it goes on with those of a package.
    """
    todo: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        if not all(cached(call, level) for level in levels):
            todo.setdefault(call[0].__module__.rpartition(".")[0], []).append(number)
    if not (total := sum(map(len, todo.values()))):
        return
    # They know the functions, which have no names to be found by: some are made by `specialize`.
    context = multiprocessing.get_context("fork")
    sys.stderr.write(f"compiling {total} kernels in {PROCESSES} processes\n")
    with ExitStack() as stack:
        begun, peak, said = dict[str, int](), 0, time.monotonic()
        pools = [ProcessPoolExecutor(1, context, _begin, (calls, levels)) for _ in range(PROCESSES)]
        for pool in pools:
            stack.enter_context(pool)
        working = {pool.submit(_compile, _next(todo, begun, own)): own for own, pool in enumerate(pools[:total])}
        for done in range(1, total + 1):
            future = next(iter(wait(working, return_when=FIRST_COMPLETED).done))
            own, (name, used) = working.pop(future), future.result()
            if any(todo.values()):
                working[pools[own].submit(_compile, _next(todo, begun, own))] = own
            peak = max(peak, used)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\033[Kcompiling kernels: {done} of {total}, {name} ")
            elif time.monotonic() - said > SAID_S:
                said = time.monotonic()
                sys.stderr.write(f"compiling kernels: {done} of {total}\n")
    end = "\r\033[K" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{end}compiled {total} kernels, with at most {peak} MB in a process\n")


def _next(todo: dict[str, list[int]], begun: dict[str, int], own: int) -> int:
    """Take a kernel for a process: of a package that it has begun, or nobody, or else another one."""
    left = [each for each in todo if todo[each]]
    package = min(left, key=lambda each: (begun.get(each, own) != own, each not in begun))
    begun.setdefault(package, own)
    return todo[package].pop(0)


_work: tuple[Sequence[Call], Sequence[str | None]]


def _begin(*work: Any) -> None:
    global _work  # noqa: PLW0603
    gc.freeze()
    _work = work


def _compile(number: int) -> tuple[str, int]:
    from amqpscope.dissector.kernels import compiling  # noqa: PLC0415 - in these processes only

    calls, levels = _work
    function, arguments = calls[number]
    processors = [processor(level) for level in levels]
    made = compiling.compiled(function, arguments, kernel.symbol(function, arguments), processors)
    for each, code in zip(processors, made, strict=True):
        kernel.keep(kernel.file_of(function, arguments, each), code.written())
    return function.__name__, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def processor(level: str | None) -> Any:
    """Return a kind of processor; without a level, this one."""
    from amqpscope.dissector.kernels.machine_code import Processor, host  # noqa: PLC0415

    return host() if level is None else Processor(level, "", is_shared=True)


def cached(call: Call, level: str | None) -> Any:
    """Return the cached code of a kernel, or None."""
    from amqpscope.dissector.kernels.machine_code import Code  # noqa: PLC0415

    return Code.read(kernel.kept(kernel.file_of(*call, processor(level))))


def link(calls: Sequence[Call], level: str, target: Path) -> None:
    """Write a shared library with these kernels."""
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    options = ["-shared", "-fPIC", "-O2", "-s", f'-DLEVEL="{level}"', f"-I{sysconfig.get_path('include')}"]
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, f"{number}.o") for number in range(len(calls))]
        for call, file in zip(calls, objects, strict=True):
            file.write_bytes(cached(call, level).data)
        command = [compiler, *options, "-o", target, Path(__file__).with_name("helpers.c"), *objects]
        subprocess.run(list(map(str, command)), check=True)  # noqa: S603


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compile all kernels.")
    parser.add_argument("folder", type=Path, nargs="?", help="write shared libraries here, for a wheel")
    main(parser.parse_args().folder)
