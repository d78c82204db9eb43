r"""Lists and maps of the stream protocol to JSON text: a 32-bit count and as many items.

A shape says what an item is: its members in order, numbers, texts after a 16-bit length, or lists of numbers. Items
of one member are JSON values, those of a struct are objects, and the pairs of a map are the members of one object.
Keys that occur twice stay. A text that is no UTF-8 has `\xNN` for each wrong byte. A list that is cut, or claims more
items than there are bytes, has the items that are whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from amqpscope.dissector.fields.json_text import QUOTE, write_escaped, write_integer, write_string
from amqpscope.dissector.fields.problems import INTEGER_TOO_LARGE, TEXT_NOT_UTF8
from amqpscope.dissector.fields.rendering import Rendered, begin_text, end_text, finished, report_once, room
from amqpscope.dissector.fields.state import ListForms, Part, Shape, Text
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.kernels.arrays import Bytes, Ints
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
        """Return the number of the shape of a type, made when it is new; None when the type is no list."""
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
        # per byte: of an empty item, or of what can be long in it
        self.growth.append(max(most // least + 1, ESCAPED))
        self.numbers[name] = len(self.shapes)
        self.shapes.append((first, len(self.members), opening, closing, last))
        return self.numbers[name]

    def tables(self) -> ListForms:
        """Return the shapes as arrays."""
        return ListForms(
            np.array(self.members, np.int64).reshape(-1, Part.WIDTH),
            np.array(self.shapes, np.int64).reshape(-1, Shape.WIDTH),
            np.frombuffer(bytes(self.literals) or b"\0", np.uint8).copy(),
        )


def render(data: Bytes, at: Ints, size: Ints, shape: Ints, growth: Ints, forms: ListForms, compiled: bool) -> Rendered:
    """Render the lists of `size[e]` bytes (with the count, as far as it is there) from `data[at[e]]` on.

    Args:
        data: the bytes.
        at: (n,) where each list begins.
        size: (n,) its bytes, all within `data`.
        shape: (n,) its shape.
        growth: of each shape, as `Shapes.growth`.
        forms: as `Shapes.tables`.
        compiled: whether the kernels run compiled.
    """
    text = room(len(at), int((size * growth[shape]).sum()) + 2 * len(at), 2)
    call(render_lists, compiled, data, at, size, shape, forms, text)
    return finished(text, data)


@kernel
def member_end(data: Bytes, at: int, end: int, kind: int, width: int) -> int:
    """Return where a member ends; -1 when that is beyond `end`."""
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
def item_end(data: Bytes, at: int, end: int, shape: int, parts: Ints, shapes: Ints) -> int:
    """Return where an item ends; -1 when that is beyond `end`."""
    for m in range(shapes[shape, Shape.FIRST], shapes[shape, Shape.END]):
        at = member_end(data, at, end, parts[m, Part.KIND], parts[m, Part.BYTES])
        if at < 0:
            return -1
    return at


@kernel
def list_end(data: Bytes, at: int, end: int, shape: int, parts: Ints, shapes: Ints) -> int:
    """Return where a list ends, whose count is at `at`; -1 when that is beyond `end`."""
    if at + COUNT > end:
        return -1
    left = unsigned(data, at, COUNT)
    at += COUNT
    while left > 0 and at >= 0:
        at = item_end(data, at, end, shape, parts, shapes)
        left -= 1
    return at


@kernel
def render_lists(data: Bytes, at: Ints, size: Ints, shape: Ints, forms: ListForms, text: Text) -> None:
    """Render all lists."""
    parts, shapes, out = forms.parts, forms.shapes, text.out
    j = 0
    for e in range(len(at)):
        begun = j
        begin_text(text, e)
        i = at[e]
        end = i + size[e]
        s = shape[e]
        out[j] = shapes[s, Shape.OPEN]
        j += 1
        left = 0
        if i + COUNT <= end:
            left = unsigned(data, i, COUNT)
            i += COUNT
        first = True
        while left > 0 and item_end(data, i, end, s, parts, shapes) >= 0:
            if not first:
                out[j] = COMMA
                j += 1
            first = False
            for m in range(shapes[s, Shape.FIRST], shapes[s, Shape.END]):
                after = member_end(data, i, end, parts[m, Part.KIND], parts[m, Part.BYTES])
                j = copy(forms.literals, parts[m, Part.TEXT], parts[m, Part.TEXT_END], out, j)
                j = write_member(data, i, after, parts[m, Part.KIND], parts[m, Part.BYTES], text, e, j)
                i = after
            if shapes[s, Shape.LAST] > 0:
                out[j] = shapes[s, Shape.LAST]
                j += 1
            left -= 1
        out[j] = shapes[s, Shape.CLOSE]
        j += 1
        end_text(text, e, begun, j)


@kernel
def write_member(data: Bytes, at: int, end: int, kind: int, width: int, text: Text, e: int, j: int) -> int:
    """Write a member of list e; returns where it ends."""
    out = text.out
    if kind == STRING:
        out[j] = QUOTE
        done = write_string(data, at + width, end, text.escapes, out, j + 1)
        if done < 0:
            done = write_escaped(data, at + width, end, text.escapes, out, j + 1)
            report_once(text, e, TEXT_NOT_UTF8, at + width)
        out[done] = QUOTE
        return done + 1
    if kind == NUMBERS:
        out[j] = OPEN_LIST
        j += 1
        at += COUNT
        while at < end:
            j = write_integer(data, at, width, False, out, j)
            at += width
            if at < end:
                out[j] = COMMA
                j += 1
        out[j] = CLOSE_LIST
        return j + 1
    if width == 8 and kind == NUMBER and data[at] >= 0x80:
        report_once(text, e, INTEGER_TOO_LARGE, at)
    return write_integer(data, at, width, kind == SIGNED_NUMBER, out, j)
