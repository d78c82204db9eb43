"""A dissection in parts whose results are files: processes that need a part share its making, and all tables are there.

Everything lies in one folder: what the light pass showed of each capture, the plan that follows from it, the blocks of
each chain of captures, and the tables of each part. What is there is not made again.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.parallel import blocks
from amqpscope.dissector.parallel.archive import Plan, dissect, planned
from amqpscope.dissector.parallel.blocks import Block, Seated
from amqpscope.dissector.parallel.flows import Halves
from amqpscope.dissector.parallel.process import settle
from amqpscope.dissector.parallel.sharing import share
from amqpscope.dissector.parallel.survey import Split, Survey, survey
from amqpscope.dissector.tables.output import Output
from amqpscope.dissector.tables.rows import schemas

COMPRESSION = "lz4"
"""Of the tables: they are written once and read a few times, by this machine."""


@dataclass(frozen=True, slots=True)
class Dissection:
    """A dissection of captures.

    Attributes:
        folder: where its files lie; it may belong to nobody else's captures or options.
        sources: the captures.
        options: returns the options of the dissection, given the time of the first packet (ns).
        parts: number of parts of the flows.
        compiled: whether kernels run compiled.
        addresses: whose flows are wanted; empty: all flows.
    """

    folder: Path
    sources: tuple[Source, ...]
    options: Callable[[int], Options]
    parts: int
    compiled: bool
    addresses: tuple[Halves, ...] = ()

    def plan(self) -> Plan:
        """Return what the light pass over the captures shows.

        Raises:
            CaptureError: a file that the user named, or every file, cannot be read.
        """
        path = self.folder / "plan"
        if not path.exists():
            plan = planned(self.sources, self._surveys, self.options)
            share(self.folder, {path.name: partial(_write, plan)})
        found: Plan = _read(path)
        return found

    def part(self, number: int) -> Path:
        """Return the folder with the tables of a part.

        Raises:
            CaptureError: a file that the user named, or every file, cannot be read.
        """
        (folder,) = share(self.folder, {f"part-{number}": partial(self._dissect, number)})
        return folder

    def _surveys(self, lists: list[list[Split]]) -> Iterator[Survey]:
        """Yield the surveys of lists of splits of captures, some of which are surveyed anew in other lists."""
        names = [f"survey-{hashlib.sha256(repr(each).encode()).hexdigest()[:16]}" for each in lists]
        surveys = {name: partial(_survey, each, self.compiled) for name, each in zip(names, lists, strict=True)}
        for file in share(self.folder, surveys):
            yield from _read(file)

    def _dissect(self, number: int, folder: Path) -> None:
        settle()
        plan = self.plan()
        cuts = {f"blocks-{at}": partial(self._cut, chain) for at, chain in enumerate(plan.chains)}
        files = share(self.folder, cuts, number * len(cuts) // self.parts)
        with Output(str(folder), schemas(plan.known.options.protocol), compression=COMPRESSION) as output:
            for work in dissect(_sorted(files, number), plan.known.dissector(self.compiled), plan.known.end_ns):
                output.add(work)

    def _cut(self, chain: Sequence[Seated], file: Path) -> None:
        with pa.ipc.new_file(str(file), blocks.SCHEMA) as writer:
            for block in blocks.cut(chain, self.parts, self.compiled, self.addresses):
                writer.write_batch(blocks.written(block))


def _survey(splits: Iterable[Split], compiled: bool, file: Path) -> None:
    _write(survey(splits, compiled), file)


def _sorted(files: Iterable[Path], part: int) -> Iterator[Block]:
    """Yield the blocks of a part in order. Files are mapped to memory, one at a time."""
    places = []
    for file in files:
        with pa.memory_map(str(file)) as mapped:
            reader = pa.ipc.open_file(mapped)
            for at in range(reader.num_record_batches):
                rows = reader.get_batch(at)
                if rows["part"][0].as_py() == part:
                    places.append((*(rows[name][0].as_py() for name in blocks.ORDER), file, at))
    for *_, file, at in sorted(places):
        with pa.memory_map(str(file)) as mapped:
            yield from blocks.read([pa.ipc.open_file(mapped).get_batch(at)])


def _write(what: object, file: Path) -> None:
    file.write_bytes(pickle.dumps(what))


def _read(file: Path) -> Any:
    return pickle.loads(file.read_bytes())  # noqa: S301 - nobody else can write into the folder
