"""The header segments of AMQP 0-10: structs one after the other, in any order, to columns.

Each struct has a plan of its own, which runs over all segments at once. Of a struct that a segment has twice the first
counts; an unknown one is skipped by its size. Both are problems, and nothing else is lost with them.
"""

import functools
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.fields import columns
from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.problems import BYTES_LEFT_OVER, FIELD_OVERRUN, TABLE_TYPE_UNKNOWN
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.spec.model import Protocol

SIZE, CODE = 4, 2
"""Bytes of a struct's size, and of its class and code."""


class Headers:
    """Decodes header segments.

    Attributes:
        columns: name and type of all columns that `decode` gives.
    """

    @classmethod
    @functools.lru_cache(maxsize=32)
    def of(cls, protocol: Protocol, only: tuple[str, ...]) -> "Headers":
        """Return one that all dissectors share."""
        return cls(protocol, only)

    def __init__(self, protocol: Protocol, only: Collection[str] | None = None) -> None:
        """Make the plans of all structs that headers of a protocol hold; `only` names the columns that are wanted."""
        held = {name for method in protocol.methods for name in method.entries}
        structs = [s for s in protocol.structs if s.name in held and s.code is not None]
        self.plans = [Plan.of_struct(protocol, struct, only) for struct in structs]
        self.codes = np.array([s.class_id << 8 | (s.code or 0) for s in structs], np.int64)
        self.columns = {name: kind for plan in self.plans for name, kind in plan.columns.items()}

    def decode(self, data: Bytes, offset: Ints, length: Ints, cut: Bytes, compiled: bool) -> Decoded:
        """Decode n header segments, each a record; arguments and result are as of `decoding.decode`."""
        n = len(offset)
        places = np.full((len(self.codes), n), -1, np.int64)
        sizes = np.zeros((len(self.codes), n), np.int64)
        cuts = np.zeros((len(self.codes), n), np.uint8)
        room = int((length // SIZE).sum()) + n
        problems = np.empty((room, 3), np.int64)
        found = call(find_structs, compiled, data, offset, length, cut, self.codes, places, sizes, cuts, problems)
        made: dict[str, pa.Array] = {}
        all_problems = [problems[:found]]
        for k, plan in enumerate(self.plans):
            has = places[k] >= 0
            if not has.any():
                continue
            decoded = decode(plan, data, places[k], sizes[k], has - np.int64(1), cuts[k], compiled)
            for name, column in decoded.columns.items():
                made[name] = pc.coalesce(made[name], column) if name in made else column
            all_problems.append(np.column_stack((decoded.problem_row, decoded.problem_code, decoded.problem_at)))
        problems = np.concatenate(all_problems)
        problems = problems[np.lexsort((problems[:, 1], problems[:, 2], problems[:, 0]))]
        return Decoded(columns.filled(made, self.columns, n), *problems.T.copy())


@kernel
def find_structs(
    data: Array, offset: Array, length: Array, cut: Array, codes: Array, places: Array, sizes: Array, cuts: Array,
    problems: Array,
) -> int:  # fmt: skip
    """Find where in each segment the fields of each struct are; returns the number of problems.

    `cuts` gets 1 where a gap cuts a struct off, of which the rest is there.
    """
    n = 0
    for r in range(len(offset)):
        at = offset[r]
        end = at + length[r]
        while at < end:
            begin = at
            size = 0
            if at + SIZE <= end:
                size = unsigned(data, at, SIZE)
            at += SIZE
            if size == 0 and at <= end:
                continue  # null
            after = at + size
            if after > end or size < CODE:
                if cut[r] == 0 or size in (1, CODE - 1):
                    problems[n, 0] = r
                    problems[n, 1] = FIELD_OVERRUN
                    problems[n, 2] = begin
                    n += 1
                    break
                if at + CODE > end:
                    break
            code = unsigned(data, at, CODE)
            known = -1
            for k in range(len(codes)):
                if codes[k] == code:
                    known = k
            if known < 0 or places[known, r] >= 0:
                problems[n, 0] = r
                problems[n, 1] = TABLE_TYPE_UNKNOWN if known < 0 else BYTES_LEFT_OVER
                problems[n, 2] = begin
                n += 1
            else:
                places[known, r] = at + CODE
                sizes[known, r] = min(after, end) - at - CODE
                cuts[known, r] = after > end
            at = after
    return n
