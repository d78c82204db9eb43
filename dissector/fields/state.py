"""What kernels here have of records under way and of values written as text, and the groups in which they take it."""

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.state import Matrix, Records, column


class Op(Matrix):
    """Ops of a plan: what is done for one field."""

    KIND = column("what it is: see `opcodes`")
    BYTES = column("bytes of the field, or of the length before it")
    SLOT = column("slot of its column; -1: read and forgotten")
    FLAG = column("number of its flag; -1: always there")
    SHAPE = column("shape of a list, form of a value, number of the fields that packing flags are for")


class Target(Matrix):
    """Where the values of a slot go."""

    LIMIT = column("largest number")
    STORE = column("what holds them: see `columns.Room`")
    VALID = column("where its validity begins")
    VALUE = column("where its values begin")
    FILL = column("the next entry, or where its numbers began and their count")


class Entry(Records):
    """Texts, tables and lists of all slots, one column each."""

    ROW = column("the record")
    AT = column("where it lies; of a secret number the number")
    SIZE = column("its bytes; of a table or list that is cut the complement of those that are there")


class Record(Records):
    """Records under way, one column each."""

    AT = column("where it is read; -1: it is done")
    END = column("where it ends")
    FLAGS = column("its flags")
    BITS = column("the byte with its bits")


class Tally(Matrix):
    """What a walk counts: one row."""

    PROBLEMS = column("problems")
    DONE = column("records that are newly done")


class Problem(Matrix):
    """Problems, one row each."""

    ROW = column("the record or value")
    CODE = column("index into `PROBLEM_CODES`")
    AT = column("place in the data")


class Shape(Matrix):
    """Shapes of lists."""

    FIRST = column("first member of an item")
    END = column("after the last")
    OPEN = column("what the text begins with")
    CLOSE = column("what it ends with")
    LAST = column("what each item ends with; 0: nothing")


class Part(Matrix):
    """Members of the items of lists."""

    KIND = column("number, text or list of numbers")
    BYTES = column("bytes of it, or of the length before it")
    TEXT = column("where the text before it begins")
    TEXT_END = column("where that ends")


class Form(Matrix):
    """Forms of values, by type code; from 256 on of types without."""

    KIND = column("kind of value: see `dialect`")
    BYTES = column("its bytes, or those of the length before it")
    ITEM = column("bytes of the count before items, or of a number in ranges; of a struct its number")


class Struct(Matrix):
    """Structs of AMQP 0-10."""

    CODE = column("class and code; -1: it has none")
    FIRST = column("first member")
    END = column("after the last")
    PACK = column("bytes of its flags")
    CODED = column("bytes of class and code, where it is a field")
    TEXT = column("where the text before it begins")
    TEXT_END = column("where that ends")


class Member(Matrix):
    """Members of structs."""

    FORM = column("its form")
    FLAG = column("number of its flag")
    TEXT = column("where the text before it begins")
    TEXT_END = column("where that ends")


class Level(Matrix):
    """Values around the current one, the outermost first."""

    END = column("where it ends")
    LEFT = column("items left; -1: as many as there are up to its end")
    CLOSE = column("what closes it")
    ELEMENT = column("type of all its items; -1: each has its own")
    MEMBER = column("next member of a struct; -1: it is none")
    FLAGS = column("flags of a struct")


class Float(Matrix):
    """Floats that are left out of a text."""

    PLACE = column("where in the text it belongs")
    VALUE = column("the value that it is in")
    AT = column("where in the data it lies")
    BYTES = column("its bytes")


class Written(Matrix):
    """How much was written: one row."""

    BYTES = column("bytes of text")
    FLOATS = column("floats left out of it")
    PROBLEMS = column("problems")
    REPORTED = column("codes of problems that the current value has, as bits; each is reported once")


class Trace(Matrix):
    """What a value has under the outermost key `traceparent`."""

    AT = column("where that lies; -1: there is no such key")
    SIZE = column("its bytes; 0: it is no text")


class ListForms(NamedTuple):
    """How the lists of a plan are coded.

    Attributes:
        parts: (members, Part).
        shapes: (shapes, Shape).
        literals: texts before members.
    """

    parts: Array
    shapes: Array
    literals: Array


class Decoding(NamedTuple):
    """Records that are decoded, and room for what is in them.

    Attributes:
        data: the bytes.
        cut: (n,) 1 where the end of a record lies in a gap.
        ops: (ops, Op).
        parts: (members, Part).
        shapes: (shapes, Shape).
        order: (n,) the records by program.
        picked: (n,) room for some of them.
        records: (Record, n).
        targets: (slots, Target).
        bits: bitmaps of `columns.Room`.
        ints: its columns of int32.
        longs: its columns of int64.
        entries: (Entry, entries).
        problems: (room, Problem).
        tally: (Tally,).
    """

    data: Array
    cut: Array
    ops: Array
    parts: Array
    shapes: Array
    order: Array
    picked: Array
    records: Array
    targets: Array
    bits: Array
    ints: Array
    longs: Array
    entries: Array
    problems: Array
    tally: Array


class Forms(NamedTuple):
    """How the values of a protocol are coded.

    Attributes:
        types: (forms, Form).
        structs: (structs, Struct).
        members: (members, Member).
        names: texts before structs and their members.
    """

    types: Array
    structs: Array
    members: Array
    names: Array


class Text(NamedTuple):
    """Values written as text, one after the other, and what is looked up for it.

    Attributes:
        out: the text.
        sizes: (values,) bytes of each in `out`.
        trace: (values, Trace).
        floats: (room, Float).
        problems: (room, Problem).
        levels: (depth, Level).
        written: (Written,).
        literals: fixed texts: see `value_text`.
        escapes: see `json_text.ESCAPES`.
        latin: see `json_text.LATIN`.
    """

    out: Array
    sizes: Array
    trace: Array
    floats: Array
    problems: Array
    levels: Array
    written: Array
    literals: Array
    escapes: Array
    latin: Array
