"""State declared once: the columns of a matrix of int64, in order, each with its meaning.

    class Lane(Matrix):
        \"\"\"Lanes, by number.\"\"\"

        CARS = column("cars on it")
        FIRST = column("the first car; -1: none", empty=-1)

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
    """The state was written by another release."""


class Column(NamedTuple):
    """A column: its meaning, its value in an empty row, and the only module or package that writes it.

    Without `by`, that is the package of the declaration.
    """

    meaning: str
    empty: int
    by: str


def column(meaning: str, empty: int = 0, by: str = "") -> int:
    """Declare a column of a `Matrix`; its name then stands for its number."""
    return cast(int, Column(meaning, empty, by))


class Matrix:
    """The declaration of a matrix, and operations on such matrices.

    A subclass of another declaration begins with the columns of that one.

    Attributes:
        version: raised by one when a column changes its meaning.
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
        """Return what determines the numbers of the columns."""
        return f"{cls.__name__} {cls.version} {' '.join(cls.columns)}"

    @classmethod
    def make(cls, count: int) -> Ints:
        """Return empty rows: (count, WIDTH). If all columns are 0, rows take memory only when they are used."""
        matrix = np.zeros((count, cls.WIDTH), np.int64)
        for number, each in enumerate(cls.columns.values()):
            if each.empty:
                matrix[:, number] = each.empty
        return matrix

    @classmethod
    def grown(cls, matrix: Ints, count: int) -> Ints:
        """Return the matrix with `count` rows; new rows are empty."""
        return np.concatenate([matrix, cls.make(count - len(matrix))])

    @classmethod
    def clear(cls, matrix: Ints, rows: Ints) -> None:
        """Empty rows of a matrix."""
        matrix[rows] = [each.empty for each in cls.columns.values()]

    @classmethod
    def written(cls, rows: Ints) -> bytes:
        """Return rows as bytes."""
        return cls._head() + rows.astype("<i8").tobytes()

    @classmethod
    def read(cls, data: bytes, captures: Ints | None = None) -> Ints:
        """The rows of which `written` made bytes.

        Args:
            data: these bytes.
            captures: what the indexes of captures are now, which stand in columns named `CAPTURE` or `..._CAPTURE`;
                None: what they were.

        Raises:
            StateError: the bytes are not of this declaration in this version.
        """
        if data[:HEAD] != cls._head() or (len(data) - HEAD) % (8 * cls.WIDTH):
            raise StateError(f"not rows of {cls.__name__}, version {cls.version}: written by another release")
        rows = np.frombuffer(data, "<i8", offset=HEAD).reshape(-1, cls.WIDTH).astype(np.int64)
        if captures is not None:
            of_captures = [number for number, name in enumerate(cls.columns) if name.endswith(CAPTURE)]
            rows[:, of_captures] = captures.take(rows[:, of_captures], mode="clip")
        return rows

    @classmethod
    def _head(cls) -> bytes:
        return zlib.crc32(cls.layout().encode()).to_bytes(HEAD, "little")


class Records(Matrix):
    """The declaration of what a stage emits: each record is a column, so that the values of a field are contiguous."""

    @classmethod
    def room(cls, count: int) -> Ints:
        """Return room for `count` records: (WIDTH, count), not initialised."""
        return np.empty((cls.WIDTH, count), np.int64)
