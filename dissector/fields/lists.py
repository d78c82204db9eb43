r"""Lists and maps of the stream protocol to JSON text: a 32-bit count and as many items.

A shape says what an item is: its members in order, numbers, texts behind a 16-bit length, or lists of numbers. Items
of one member are JSON values, those of a struct are objects, and the pairs of a map are the members of one object.
Keys that occur twice stay. A text that is no UTF-8 has `\xNN` for each wrong byte. A list that is cut, or claims more
items than there are bytes, has the items that are whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from amqpscope.dissector.fields.json_text import ESCAPES, QUOTE, write_escaped, write_integer, write_string
from amqpscope.dissector.fields.problems import INTEGER_TOO_LARGE, TEXT_NOT_UTF8
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.kernels.arrays import Ints, Octets
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.spec.model import Struct

NUMBER, SIGNED_NUMBER, STRING, NUMBERS = range(4)
MEMBERS = {
    "uint8": (NUMBER, 1), "uint16": (NUMBER, 2), "uint32": (NUMBER, 4), "uint64": (NUMBER, 8),
    "int16": (SIGNED_NUMBER, 2), "int64": (SIGNED_NUMBER, 8), "string": (STRING, 2), "[uint16]": (NUMBERS, 2),
}  # fmt: skip
"""Kind of each type that may stand in an item, and its bytes; of a string those of its length."""
MAPS = {"map": "string", "long-map": "int64"}
"""Types of the values of maps."""

COUNT = 4
DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}
COMMA, OPEN_LIST, CLOSE_LIST, OPEN_MAP, CLOSE_MAP = (ord(c) for c in ",[]{}")
ESCAPED = 6
"""A byte of text becomes at most this many."""
M_KIND, M_WIDTH, M_LITERAL, M_LITERAL_END, M_WIDTH_OF_MEMBERS = range(5)
S_FIRST, S_END, S_OPEN, S_CLOSE, S_LAST, S_WIDTH_OF_SHAPES = range(6)


@dataclass
class Shapes:
    """The shapes of the lists of a plan, as tables for kernels."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Number of the shape of each type."""
    members: list[tuple[int, int, int, int]] = field(default_factory=list)
    shapes: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    literals: bytearray = field(default_factory=bytearray)
    growth: list[int] = field(default_factory=list)
    """Bytes of JSON for a byte of the list, at most."""

    def number(self, name: str, structs: Iterable[Struct]) -> int | None:
        """The number of the shape of a type, made when it is new; None when the type is no list."""
        if name in self.numbers:
            return self.numbers[name]
        if name in MAPS:
            parts = [("", "string"), (":", MAPS[name])]
            return self._make(name, parts, OPEN_MAP, CLOSE_MAP, 0)
        if not name.startswith("["):
            return None
        item = name[1:-1]
        if item in MEMBERS:
            return self._make(name, [("", item)], OPEN_LIST, CLOSE_LIST, 0)
        struct = next((s for s in structs if s.name == item), None)
        if struct is None:
            return None
        parts = [(f'{"," if k else "{"}"{f.name}":', f.type) for k, f in enumerate(struct.fields)]
        return self._make(name, parts, OPEN_LIST, CLOSE_LIST, CLOSE_MAP)

    def _make(self, name: str, parts: list[tuple[str, str]], opening: int, closing: int, last: int) -> int:
        first = len(self.members)
        least, most = 0, 2
        for literal, kind in parts:
            what, width = MEMBERS[kind]
            begin = len(self.literals)
            self.literals += literal.encode()
            self.members.append((what, width, begin, len(self.literals)))
            least += COUNT if what == NUMBERS else width
            most += len(literal) + (DIGITS[width] + 1 if what <= SIGNED_NUMBER else 2)
        # per octet: of an empty item, or of what can be long in it
        self.growth.append(max(most // least + 1, ESCAPED))
        self.numbers[name] = len(self.shapes)
        self.shapes.append((first, len(self.members), opening, closing, last))
        return self.numbers[name]

    def tables(self) -> tuple[Ints, Ints, Octets]:
        """Members, shapes and literals as arrays."""
        return (
            np.array(self.members, np.int64).reshape(-1, M_WIDTH_OF_MEMBERS),
            np.array(self.shapes, np.int64).reshape(-1, S_WIDTH_OF_SHAPES),
            np.frombuffer(bytes(self.literals) or b"\0", np.uint8).copy(),
        )


@dataclass(frozen=True, slots=True)
class Lists:
    """Rendered lists, one behind the other."""

    octets: Octets
    """JSON, valid UTF-8."""
    sizes: Ints
    """Bytes of each list in `octets`."""
    problems: Ints
    """(problems, 3): list, index into `PROBLEM_CODES`, place in the data."""


def render(
    data: Octets, at: Ints, size: Ints, shape: Ints, growth: Ints, tables: tuple[Ints, Ints, Octets], compiled: bool
) -> Lists:
    """Render the lists of `size[e]` bytes (with the count, as far as it is there) from `data[at[e]]` on.

    Args:
        data: the bytes.
        at: (n,) where each list begins.
        size: (n,) its bytes, all within `data`.
        shape: (n,) its shape.
        growth: of each shape, as `Shapes.growth`.
        tables: as `Shapes.tables`.
        compiled: whether the kernels run compiled.
    """
    n = len(at)
    octets = np.empty(int((size * growth[shape]).sum()) + 2 * n, np.uint8)
    sizes = np.empty(n, np.int64)
    problems = np.empty((2 * n, 3), np.int64)
    used = np.zeros(2, np.int64)
    call(render_lists, compiled, data, at, size, shape, *tables, ESCAPES, octets, sizes, problems, used)
    return Lists(octets[: used[0]].copy(), sizes, problems[: used[1]])


@kernel
def member_end(data: Octets, at: int, end: int, kind: int, width: int) -> int:
    """Where a member ends; -1 when that is beyond `end`."""
    if kind == NUMBERS:
        if at + COUNT > end:
            return -1
        after = at + COUNT + unsigned(data, at, COUNT) * width
    elif kind == STRING:
        if at + width > end:
            return -1
        after = at + width + unsigned(data, at, width)
    else:
        after = at + width
    if after > end:
        return -1
    return after


@kernel
def list_end(data: Octets, at: int, end: int, shape: int, members: Ints, shapes: Ints) -> int:
    """Where a list ends, whose count is at `at`; -1 when that is beyond `end`."""
    if at + COUNT > end:
        return -1
    left = unsigned(data, at, COUNT)
    at += COUNT
    while left > 0:
        for m in range(shapes[shape, S_FIRST], shapes[shape, S_END]):
            at = member_end(data, at, end, members[m, M_KIND], members[m, M_WIDTH])
            if at < 0:
                return -1
        left -= 1
    return at


@kernel
def render_lists(
    data: Octets, at: Ints, size: Ints, shape: Ints, members: Ints, shapes: Ints, literals: Octets, escapes: Octets,
    out: Octets, sizes: Ints, problems: Ints, used: Ints,
) -> None:  # fmt: skip
    """Render all lists; `used` gets the bytes of `out` and the problems."""
    j = 0
    n_problems = 0
    for e in range(len(at)):
        begin = j
        i = at[e]
        end = i + size[e]
        s = shape[e]
        out[j] = shapes[s, S_OPEN]
        j += 1
        left = 0
        if i + COUNT <= end:
            left = unsigned(data, i, COUNT)
            i += COUNT
        told_text = False
        told_large = False
        first = True
        while left > 0:
            after = i
            for m in range(shapes[s, S_FIRST], shapes[s, S_END]):
                if after >= 0:
                    after = member_end(data, after, end, members[m, M_KIND], members[m, M_WIDTH])
            if after < 0:
                break
            if not first:
                out[j] = COMMA
                j += 1
            first = False
            for m in range(shapes[s, S_FIRST], shapes[s, S_END]):
                kind = members[m, M_KIND]
                width = members[m, M_WIDTH]
                j = copy(literals, members[m, M_LITERAL], members[m, M_LITERAL_END], out, j)
                after = member_end(data, i, end, kind, width)
                if kind == STRING:
                    out[j] = QUOTE
                    done = write_string(data, i + width, after, escapes, out, j + 1)
                    if done < 0:
                        done = write_escaped(data, i + width, after, escapes, out, j + 1)
                        if not told_text:
                            told_text = True
                            problems[n_problems, 0] = e
                            problems[n_problems, 1] = TEXT_NOT_UTF8
                            problems[n_problems, 2] = i + width
                            n_problems += 1
                    out[done] = QUOTE
                    j = done + 1
                elif kind == NUMBERS:
                    out[j] = OPEN_LIST
                    j += 1
                    i += COUNT
                    while i < after:
                        j = write_integer(data, i, width, False, out, j)
                        i += width
                        if i < after:
                            out[j] = COMMA
                            j += 1
                    out[j] = CLOSE_LIST
                    j += 1
                else:
                    j = write_integer(data, i, width, kind == SIGNED_NUMBER, out, j)
                    if width == 8 and kind == NUMBER and data[i] >= 0x80 and not told_large:
                        told_large = True
                        problems[n_problems, 0] = e
                        problems[n_problems, 1] = INTEGER_TOO_LARGE
                        problems[n_problems, 2] = i
                        n_problems += 1
                i = after
            if shapes[s, S_LAST] > 0:
                out[j] = shapes[s, S_LAST]
                j += 1
            left -= 1
        out[j] = shapes[s, S_CLOSE]
        j += 1
        sizes[e] = j - begin
    used[0] = j
    used[1] = n_problems
