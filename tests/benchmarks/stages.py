"""Where the time goes inside of `dissect`: processor time of each stage, of the thread that runs it.

The stages' functions are wrapped in timers that stop while another stage runs inside of them. Processor time, unlike
time on the wall, hardly changes when the machine has other things to do.
"""

import functools
import inspect
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any

from amqpscope.dissector import dissector as whole
from amqpscope.dissector import reading
from amqpscope.dissector.capture import file
from amqpscope.dissector.cli import program
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.packets import decoder
from amqpscope.dissector.protocols import detection
from amqpscope.dissector.protocols.amqp091 import handshake, protocol
from amqpscope.dissector.protocols.stream import protocol as stream
from amqpscope.dissector.protocols.stream import records
from amqpscope.dissector.tables import connections, output, rows
from amqpscope.dissector.tcp import reassembler

STAGES = (
    ("clock", reading.Reading, "_clock_steps"),
    ("scan", file.CaptureFile, "__iter__"),
    ("segments", decoder.PacketDecoder, "segments"),
    ("tcp", reassembler.Reassembler, "feed"),
    ("tcp", reassembler.Reassembler, "finish"),
    ("tcp", reassembler.Reassembler, "free"),
    ("detection", detection.Detector, "sort"),
    ("walk", protocol.Amqp091, "feed"),
    ("assemble", protocol.Amqp091, "_take"),
    ("assemble", protocol.Amqp091, "end"),
    ("decode frames", protocol.Amqp091, "_arguments"),
    ("decode messages", protocol.Amqp091, "decode"),
    ("walk", stream.Stream, "feed"),
    ("assemble", stream.Stream, "_take"),
    ("decode frames", stream.Stream, "_decoded"),
    ("unpack", records.Reader, "_unpacked"),
    ("decode messages", records.Reader, "columns"),
    ("connections", connections.Connections, "begin"),
    ("connections", handshake.Amqp091Handshakes, "take"),
    ("connections", connections.Connections, "close"),
    ("connections", connections.Connections, "rows"),
    ("rows", rows.Tables, "frames"),
    ("rows", rows.Tables, "messages"),
    ("rows", rows.Tables, "stream_frames"),
    ("rows", rows.Tables, "stream_messages"),
    ("rows", rows.Tables, "problems"),
    ("rows", rows.Tables, "faults"),
    ("carry", whole, "gather"),
    ("carry", whole, "move"),
    ("hand over", output.Output, "add"),
    ("hand over", output.Output, "finish"),
    ("write", getattr(output, "_Table"), "write"),  # noqa: B009 - not public
    ("write", getattr(output, "_Table"), "complete"),  # noqa: B009
)
"""Stage, and the functions that are it. What a stage calls belongs to it unless it is listed too."""

REST = "the rest"


class Timer:
    """Processor time by stage and by kernel; one stack of open stages a thread."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = defaultdict(float)
        self.kernels: dict[str, float] = defaultdict(float)
        self._open: dict[int, list[tuple[dict[str, float], str]]] = defaultdict(list)
        self._since: dict[int, float] = {}

    def _lap(self) -> list[tuple[dict[str, float], str]]:
        thread, now = get_ident(), time.thread_time()
        stack = self._open[thread]
        if stack:
            counts, name = stack[-1]
            counts[name] += now - self._since[thread]
        self._since[thread] = now
        return stack

    def enter(self, name: str) -> None:
        """The stage at hand stops, this one runs."""
        self._lap().append((self.stages, name))

    def leave(self) -> None:
        """The stage ends, and the one around it goes on."""
        self._lap().pop()

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, or generator function, timed."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def steps(*arguments: Any, **named: Any) -> Iterator[Any]:
                iterator = function(*arguments, **named)
                while True:
                    self.enter(name)
                    try:
                        item = next(iterator)
                    except StopIteration:
                        return
                    finally:
                        self.leave()
                    yield item

            return steps

        @functools.wraps(function)
        def once(*arguments: Any, **named: Any) -> Any:
            self.enter(name)
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return once

    def call(self, function: Callable[..., Any], compiled: bool, *arguments: Any) -> Any:
        """In the place of `kernel.call`: counts the kernel beside its stage."""
        begin = time.thread_time()
        try:
            return kernel_call(function, compiled, *arguments)
        finally:
            self.kernels[f"{function.__module__.removeprefix('amqpscope.dissector.')}.{function.__name__}"] += (
                time.thread_time() - begin
            )


kernel_call = kernel.call


def profile(path: Path) -> dict[str, Any]:
    """Dissect a capture in this process, kernels compiled before.

    Returns:
        `stages` and `kernels` (a part of the stages) with processor seconds, `wall_s`.
    """
    timer = Timer()
    kept = [(owner, name, inspect.getattr_static(owner, name)) for _, owner, name in STAGES]
    modules = [m for n, m in sys.modules.items() if n.startswith("amqpscope.dissector.") and hasattr(m, "call")]
    try:
        for stage, owner, name in STAGES:
            setattr(owner, name, timer.wrap(stage, getattr(owner, name)))
        for module in modules:
            module.call = timer.call  # type: ignore[attr-defined]
        run = timer.wrap(REST, program.main)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            begin = time.perf_counter()
            status = run(["dissect", str(path), "-o", folder])
            wall = time.perf_counter() - begin
            if status:
                raise RuntimeError(f"dissect ended with status {status}")
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
        for module in modules:
            module.call = kernel_call  # type: ignore[attr-defined]
    return {"stages": dict(timer.stages), "kernels": dict(timer.kernels), "wall_s": wall}


def report(found: dict[str, Any], captured: int, frames: int) -> str:
    """The profile as a table."""
    total = sum(found["stages"].values())
    lines = [f"{'stage':<28}{'cpu s':>8}{'share':>8}{'ns/frame':>10}{'MB/s':>9}"]
    for title in ("stages", "kernels"):
        if title == "kernels":
            lines.append("of that, kernels")
        for name, seconds in sorted(found[title].items(), key=lambda item: -item[1]):
            if seconds > total / 500:
                lines.append(
                    f"{name:<28}{seconds:>8.3f}{seconds / total:>8.1%}{seconds / frames * 1e9:>10.0f}"
                    f"{captured / seconds / 1e6:>9.0f}"
                )
    lines.append(f"{'all, both threads':<28}{total:>8.3f}{1:>8.0%}{total / frames * 1e9:>10.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(profile(Path(sys.argv[1]))))
