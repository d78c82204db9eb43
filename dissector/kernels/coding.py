"""Write state other than matrices to bytes: plain values, and objects of a closed list of classes.

Reading yields nothing else, whoever wrote the bytes: it looks up no other class, and runs no code from them.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.kernels.state import HEAD, StateError

COUNT = Struct("<BQ")
"""The kind of a value, and its count of bytes or items."""
NONE, FALSE, TRUE, INT, STR, BYTES, BYTEARRAY, LIST, TUPLE, DICT, NUMBERS, COLUMN, FIRST = range(13)
"""From FIRST on, the number of a class."""
CONSTANTS: dict[int, Any] = {NONE: None, FALSE: False, TRUE: True}
ARRAYS = {np.dtype(kind).str for kind in (np.bool_, np.uint8, np.int64, np.uint64)}
"""Kinds of arrays."""
WRONG = ValueError, LookupError, TypeError, ArithmeticError, RecursionError, OSError, StopIteration, pa.ArrowException
"""What bytes that nobody wrote so lead to."""
CAPTURE = "capture"
"""Name of fields that hold the index of a capture."""


@dataclass(slots=True)
class _Source:
    """Bytes, and the number of them read."""

    data: bytes
    at: int
    captures: Ints | None

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > len(self.data) - self.at:
            raise ValueError
        self.at += count
        return self.data[self.at - count : self.at]


class Target(NamedTuple):
    """Where state is put back.

    Attributes:
        slots: (n,): slots of the connections, in the order in which they were taken out.
        capacity: number of slots.
        captures: for each index of a capture in the source of the state, its index here.
        buffer: receives the bytes that rows point at.
    """

    slots: Ints
    capacity: int
    captures: Ints
    buffer: Buffer


class Coding:
    """Writes and reads plain values, lists, tuples, dicts, arrays of numpy and Arrow, and objects of these classes.

    An object is written as all fields of its dataclass or NamedTuple, or else its `__slots__`.
    """

    def __init__(self, *classes: type) -> None:
        self.classes = classes
        self.numbers = {each: number for number, each in enumerate(classes, FIRST)}
        self.fields = [_fields(each) for each in classes]
        layout = "".join(f"{each.__name__}{fields}" for each, fields in zip(classes, self.fields, strict=True))
        self.head = crc32(layout.encode()).to_bytes(HEAD, "little")

    def written(self, value: Any) -> bytes:
        """Return a value as bytes.

        Raises:
            TypeError: the value holds an object of another class.
        """
        parts = [self.head]
        self._write(value, parts)
        return b"".join(parts)

    def read(self, data: bytes, captures: Ints | None = None) -> Any:
        """Return the value of which `written` made bytes.

        Args:
            data: the bytes.
            captures: the new indexes of captures, as in `state.Matrix.read`.

        Raises:
            StateError: the bytes are not of these classes with these fields.
        """
        source = _Source(data, HEAD, captures)
        try:
            if data[:HEAD] == self.head:
                value = self._read(source)
                if source.at == len(data):
                    return value
        except WRONG:
            pass
        raise StateError(f"not state of {self.classes[0].__name__ if self.classes else 'values'} of this release")

    def _write(self, value: Any, parts: list[bytes]) -> None:
        """Append a value to the parts."""
        kind = type(value)
        if value is None or kind is bool:
            parts.append(COUNT.pack(NONE if value is None else TRUE if value else FALSE, 0))
        elif kind is int:
            parts += _counted(INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is str:
            parts += _counted(STR, value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            parts += _counted(BYTES, value)
        elif kind is bytearray:
            parts += _counted(BYTEARRAY, bytes(value))
        elif kind is list or kind is tuple:
            self._write_items(LIST if kind is list else TUPLE, value, parts)
        elif kind is dict:
            self._write_items(DICT, [each for item in value.items() for each in item], parts)
        elif kind is np.ndarray:
            self._write_items(NUMBERS, (value.dtype.str, value.shape, value.tobytes()), parts)
        elif isinstance(value, pa.Array):
            parts += _counted(COLUMN, _streamed(value))
        elif kind in self.numbers:
            number = self.numbers[kind]
            self._write_items(number, [getattr(value, name) for name in self.fields[number - FIRST]], parts)
        else:
            raise TypeError(f"{kind.__name__} is not declared as state")

    def _write_items(self, kind: int, items: list[Any] | tuple[Any, ...], parts: list[bytes]) -> None:
        parts.append(COUNT.pack(kind, len(items)))
        for item in items:
            self._write(item, parts)

    def _read(self, source: _Source) -> Any:
        kind, count = COUNT.unpack(source.take(COUNT.size))
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        if kind == INT:
            return int.from_bytes(source.take(count), "little", signed=True)
        if kind == STR:
            return source.take(count).decode("utf-8", "surrogatepass")
        if kind in (BYTES, BYTEARRAY):
            return source.take(count) if kind == BYTES else bytearray(source.take(count))
        if kind == COLUMN:
            return _column(source.take(count))
        if count > len(source.data):
            raise ValueError
        items = [self._read(source) for _ in range(count)]
        if kind == DICT:
            return dict(zip(items[::2], items[1::2], strict=True))
        if kind in (LIST, TUPLE):
            return items if kind == LIST else tuple(items)
        if kind == NUMBERS:
            return _numbers(*items)
        values = dict(zip(self.fields[kind - FIRST], items, strict=True))
        if source.captures is not None and CAPTURE in values:
            values[CAPTURE] = int(source.captures[values[CAPTURE]])
        return _made(self.classes[kind - FIRST], values)


def _counted(kind: int, data: bytes) -> tuple[bytes, bytes]:
    return COUNT.pack(kind, len(data)), data


def _numbers(kind: str, shape: tuple[int, ...], data: bytes) -> NDArray[Any]:
    """Return an array; never one of objects."""
    if kind not in ARRAYS:
        raise ValueError
    return np.frombuffer(data, kind).reshape(shape).copy()


def _streamed(column: pa.Array) -> bytes:
    """Return an Arrow array as a stream of its own."""
    batch = pa.record_batch([column], [""])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _column(data: bytes) -> pa.Array:
    column = pa.ipc.open_stream(data).read_next_batch().column(0)
    column.validate(full=True)
    return column


def _fields(of: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class."""
    return tuple(getattr(of, "_fields", None) or getattr(of, "__dataclass_fields__", None) or of.__slots__)


def _made(of: Any, values: dict[str, Any]) -> Any:
    """Return an object with these fields."""
    if issubclass(of, tuple):
        return of(**values)
    made = object.__new__(of)
    for name, value in values.items():
        object.__setattr__(made, name, value)  # of frozen ones, too
    return made


PLAIN = Coding()
"""Coding of state without objects."""
