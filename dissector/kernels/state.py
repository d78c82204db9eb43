"""State declared once: the columns of a matrix of int64, in order, each with its meaning.

    class Lane(Matrix):
        \"\"\"Lanes, by number.\"\"\"

        CARS = column("cars on it")
        FIRST = column("the car in front; -1: none", empty=-1)

A kernel says `lanes[i, Lane.FIRST]`; compiled, that is a plain number. The same declaration makes matrices, grows them,
empties rows, and writes them to bytes and reads them.
"""

import zlib
from typing import ClassVar, NamedTuple, cast

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.errors import Error

HEAD = 4
"""Bytes that say which declaration written rows are of."""
CAPTURE = "CAPTURE"
"""With this the names of columns end that hold the index of a capture."""


class StateError(Error):
    """State that was written by another release."""


class Column(NamedTuple):
    """A column: what it means, what it holds in an empty row, and the module or room that alone writes it.

    Without `by`, that is the room of the declaration.
    """

    meaning: str
    empty: int
    by: str


def column(meaning: str, empty: int = 0, by: str = "") -> int:
    """Declare a column of a `Matrix`, which makes its name stand for its number."""
    return cast(int, Column(meaning, empty, by))


class Matrix:
    """A declaration, and what is done with the matrices that it is of.

    A subclass of another declaration has the columns of that first.

    Attributes:
        version: counted up when a column changes its meaning.
        columns: by name, in order.
        WIDTH: number of columns.
    """

    version: ClassVar[int] = 1
    columns: ClassVar[dict[str, Column]] = {}
    WIDTH: ClassVar[int] = 0

    def __init_subclass__(cls, version: int = 1) -> None:
        cls.version = version
        cls.columns = cls.columns | {name: each for name, each in vars(cls).items() if isinstance(each, Column)}
        cls.WIDTH = len(cls.columns)
        for number, name in enumerate(cls.columns):
            setattr(cls, name, number)

    @classmethod
    def layout(cls) -> str:
        """What a column's number follows from."""
        return f"{cls.__name__} {cls.version} {' '.join(cls.columns)}"

    @classmethod
    def make(cls, count: int) -> Ints:
        """Empty rows: (count, WIDTH). Where all columns are 0, they take memory when they are used."""
        matrix = np.zeros((count, cls.WIDTH), np.int64)
        for number, each in enumerate(cls.columns.values()):
            if each.empty:
                matrix[:, number] = each.empty
        return matrix

    @classmethod
    def grown(cls, matrix: Ints, count: int) -> Ints:
        """The matrix with so many rows; new ones are empty."""
        return np.concatenate([matrix, cls.make(count - len(matrix))])

    @classmethod
    def clear(cls, matrix: Ints, rows: Ints) -> None:
        """Empty rows of a matrix."""
        matrix[rows] = [each.empty for each in cls.columns.values()]

    @classmethod
    def written(cls, rows: Ints) -> bytes:
        """Rows as bytes."""
        return cls._head() + rows.astype("<i8").tobytes()

    @classmethod
    def read(cls, octets: bytes, captures: Ints | None = None) -> Ints:
        """The rows of which `written` made bytes.

        Args:
            octets: these bytes.
            captures: what the indexes of captures are now, which stand in columns named `CAPTURE` or `..._CAPTURE`;
                None: what they were.

        Raises:
            StateError: the bytes are not of this declaration in this version.
        """
        if octets[:HEAD] != cls._head() or (len(octets) - HEAD) % (8 * cls.WIDTH):
            raise StateError(f"not rows of {cls.__name__}, version {cls.version}: written by another release")
        rows = np.frombuffer(octets, "<i8", offset=HEAD).reshape(-1, cls.WIDTH).astype(np.int64)
        if captures is not None:
            of_captures = [number for number, name in enumerate(cls.columns) if name.endswith(CAPTURE)]
            rows[:, of_captures] = captures.take(rows[:, of_captures], mode="clip")
        return rows

    @classmethod
    def _head(cls) -> bytes:
        return zlib.crc32(cls.layout().encode()).to_bytes(HEAD, "little")


class Records(Matrix):
    """A declaration of what a stage hands to the next: one column of the matrix each, so that a field lies together."""

    @classmethod
    def room(cls, count: int) -> Ints:
        """Room for so many: (WIDTH, count), not initialised."""
        return np.empty((cls.WIDTH, count), np.int64)
