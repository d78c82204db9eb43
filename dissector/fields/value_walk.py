"""The walk over tables, maps, lists, arrays and structs that writes them as JSON text; see `tables` for what it writes.

AMQP 1.0 has a walk of its own (`amqp100.values`): there keys are values of any type, which are written before what
follows them is measured, counts stand after sizes, items of arrays share a constructor, and described values have
no end. What both write, and how it is kept, is in `value_text`, `json_text` and `rendering`.

Bounds, for all kernels here: every read lies before the end of its level, which lies within that of the one around it;
a name and its value are measured before either is written.
"""

from amqpscope.dissector.fields.dialect import (
    ARRAY,
    BIT,
    BOOLEAN,
    BYTES,
    FLOAT,
    LIST,
    RANGES,
    SIGNED,
    STRING,
    STRUCT,
    STRUCT32,
    TABLE,
    UNKNOWN,
    UNSIGNED,
    UUID,
)
from amqpscope.dissector.fields.json_text import (
    COLON,
    COMMA,
    QUOTE,
    write_integer,
    write_literal,
    write_string,
    write_uuid,
)
from amqpscope.dissector.fields.problems import TABLE_MALFORMED, TABLE_TOO_DEEP, TABLE_TYPE_UNKNOWN
from amqpscope.dissector.fields.rendering import (
    begin_text,
    end_text,
    leave_out,
    level_at,
    put_level,
    put_trace,
    report,
    report_once,
    write_text_name,
)
from amqpscope.dissector.fields.state import Form, Forms, Level, Member, Struct, Text, Trace
from amqpscope.dissector.fields.text import Bytes, Integers, copy
from amqpscope.dissector.fields.value_text import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    FALSE,
    NULL,
    OPEN_ARRAY,
    OPEN_OBJECT,
    STRING_OPEN,
    STRUCT_OPEN,
    TRUE,
    is_traceparent,
    write_count,
    write_hexadecimal,
    write_rare,
)
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import i64, kernel

DEPTH = 64
"""Levels of tables, arrays and structs, the outermost included."""
PROBLEMS = 5
"""One value has at most this many problems: wrong texts, ranges, structs and depth once each, what ends it once."""

CLOSE_NAMED = 0
"""Of a struct that its name was written before: two braces."""


@kernel
def render_values(data: Bytes, at: Integers, size: Integers, form: Integers, forms: Forms, text: Text) -> None:
    """Render all values, whose bytes after their length these are."""
    j = 0
    for e in range(len(at)):
        begun = j
        begin_text(text, e)
        kind = forms.types[form[e], Form.KIND]
        broken = -1
        if is_counted(kind, form[e], forms.types):
            broken = head_problem(data, at[e], at[e] + size[e], form[e], forms.types, forms.structs)
        if broken >= 0:
            report(text, e, broken, at[e])
            text.out[j] = OPEN_ARRAY if kind in (LIST, ARRAY) else OPEN_OBJECT
            text.out[j + 1] = CLOSE_ARRAY if kind in (LIST, ARRAY) else CLOSE_OBJECT
            j += 2
        elif kind == UUID:
            j = write_uuid(data, at[e], text.out, j)
        else:
            j = render_value(data, e, at[e], at[e] + size[e], form[e], forms, text, j)
        end_text(text, e, begun, j)


@kernel
def render_value(
    data: Bytes, e: int, value: int, after: int, code: int, forms: Forms, text: Text, j: int
) -> int:  # fmt: skip
    """Render value e, of form `code`, and all that is in it; returns where the text ends."""
    levels, out, types, members = text.levels, text.out, forms.types, forms.members
    here = value
    kind = types[code, Form.KIND]
    depth = 0
    # of the current level
    i = after
    end = left = close = flags = 0
    element = member = -1
    first = set_flag = True
    while True:
        if kind >= TABLE:
            if depth > 0:
                levels[depth - 1, Level.LEFT] = left
                levels[depth - 1, Level.MEMBER] = member
            items, j = open_value(data, e, value, after, code, here, depth, forms, text, j)
            if items >= 0:
                end, left, close, element, member, flags = level_at(levels, depth)
                depth += 1
                i = items
                first = True
        elif kind == BIT:
            j = write_literal(text.literals, TRUE if set_flag else FALSE, out, j)
        else:
            j = write_scalar(data, e, value, after, kind, types[code, Form.ITEM], here, text, j)
        broken = -1
        while depth > 0:
            if broken < 0 and (left > 0 or (left < 0 and i < end)):
                # measure: key, type code, length, value
                start = key_end = i
                code = element
                if member >= 0:
                    while not is_there(members, member, flags, types):
                        member += 1
                    code = members[member, Member.FORM]
                elif i < end and close != CLOSE_ARRAY:
                    key_end = i + 1 + data[i]
                here = key_end
                if member < 0 and here >= end:
                    broken = TABLE_MALFORMED
                else:
                    kind, value, after, code, broken = measure(data, here, end, code, forms)
                if broken < 0:
                    break
                report(text, e, broken, start)
            out[j] = CLOSE_OBJECT if close == CLOSE_NAMED else close
            j += 1
            if close == CLOSE_NAMED:
                out[j] = CLOSE_OBJECT
                j += 1
            i = end
            depth -= 1
            first = False
            if depth > 0:
                end, left, close, element, member, flags = level_at(levels, depth - 1)
        if depth == 0:
            return j
        # write
        if not first:
            out[j] = COMMA
            j += 1
        first = False
        i = after
        if left > 0:
            left -= 1
        if member >= 0:
            j = copy(forms.names, members[member, Member.TEXT], members[member, Member.TEXT_END], out, j)
            set_flag = (flags >> members[member, Member.FLAG]) & 1 == 1
            member += 1
        elif close != CLOSE_ARRAY:
            if depth == 1 and key_end - start == 12 and text.trace[e, Trace.AT] < 0:
                find_trace(data, e, start + 1, value, after, kind, text)
            j = write_name(data, e, start + 1, key_end, text, j)


@kernel
def find_trace(data: Bytes, e: int, key: int, value: int, after: int, kind: int, text: Text) -> None:
    """Note where the value is if its key of 11 bytes is `traceparent`."""
    if is_traceparent(data, key, text.literals):
        put_trace(text, e, value, after - value if kind in (STRING, BYTES) else 0)


@kernel
def measure(data: Bytes, at: int, end: int, code: int, forms: Forms) -> tuple[int, int, int, int, int]:
    """Measure a value of form `code`, or whose type code (-1) comes first.

    Returns its kind, where its bytes begin after its length and where they end, its form, and what is wrong with it,
    or -1.
    """
    if code < 0:
        code = i64(data[at])
        at += 1
    kind = forms.types[code, Form.KIND]
    value = at
    after = at + forms.types[code, Form.BYTES]
    broken = -1
    if kind == UNKNOWN:
        broken = TABLE_TYPE_UNKNOWN
    elif after > end:
        broken = TABLE_MALFORMED
    elif kind >= STRING:
        value = after
        after += unsigned(data, at, value - at)
        if after > end:
            broken = TABLE_MALFORMED
        elif after > value and is_counted(kind, code, forms.types):
            broken = head_problem(data, value, after, code, forms.types, forms.structs)
    return kind, value, after, code, broken


@kernel
def is_counted(kind: int, code: int, types: Integers) -> bool:
    """Return whether items of a value have a head before them: their count, or what a struct is."""
    return kind >= ARRAY or (kind >= TABLE and types[code, Form.ITEM] > 0)


@kernel
def write_name(data: Bytes, e: int, at: int, end: int, text: Text, j: int) -> int:
    """Write the name of an entry; returns where that ends."""
    out = text.out
    out[j] = QUOTE
    done = write_text_name(data, e, at, end, text, j + 1)
    out[done] = QUOTE
    out[done + 1] = COLON
    return done + 2


@kernel
def write_scalar(
    data: Bytes, e: int, at: int, end: int, kind: int, width: int, here: int, text: Text, j: int
) -> int:  # fmt: skip
    """Write a value without items, whose type code is at `here`; returns where it ends. A float is left out."""
    out = text.out
    if kind == STRING:
        out[j] = QUOTE
        done = write_string(data, at, end, text.escapes, out, j + 1)
        if done < 0:
            return write_hexadecimal(data, at, end, text.literals, STRING_OPEN, out, j)
        out[done] = QUOTE
        return done + 1
    if kind in (SIGNED, UNSIGNED):
        return write_integer(data, at, end - at, kind == SIGNED, out, j)
    if kind == BOOLEAN:
        return write_literal(text.literals, TRUE if data[at] else FALSE, out, j)
    if kind == FLOAT:
        leave_out(text, e, at, end - at, j)
        return j
    if kind == RANGES and (end - at) % (2 * width):
        report_once(text, e, TABLE_MALFORMED, here)
    return write_rare(data, at, end, kind, width, text.literals, text.latin, text.escapes, out, j)


@kernel
def open_value(
    data: Bytes, e: int, at: int, end: int, code: int, here: int, depth: int, forms: Forms, text: Text, j: int
) -> tuple[int, int]:  # fmt: skip
    """Open a value with items, as level `depth`, or write it where its items are not to be read.

    Returns where its items begin (-1: it is written), and where the text ends.
    """
    out = text.out
    kind = forms.types[code, Form.KIND]
    counted = is_counted(kind, code, forms.types)
    if counted and end == at and depth > 0:
        return -1, write_literal(text.literals, NULL, out, j)
    if kind == STRUCT32 and struct_at(data, at, forms.structs) < 0:
        report_once(text, e, TABLE_TYPE_UNKNOWN, here)
        return -1, write_hexadecimal(data, at, end, text.literals, STRUCT_OPEN, out, j)
    if kind == ARRAY and is_hollow(data, at, forms.types):
        return -1, write_count(data, at, text.literals, out, j)
    if depth == DEPTH:
        report_once(text, e, TABLE_TOO_DEEP, here)
        return -1, write_literal(text.literals, NULL, out, j)
    is_list = kind in (LIST, ARRAY)
    put_level(text, depth, end, -1, CLOSE_ARRAY if is_list else CLOSE_OBJECT, -1)
    if counted:
        at, j = open_counted(data, at, code, forms, text.levels, depth, out, j)
    out[j] = OPEN_ARRAY if is_list else OPEN_OBJECT
    return at, j + 1


@kernel
def open_counted(
    data: Bytes, at: int, code: int, forms: Forms, levels: Integers, depth: int, out: Bytes, j: int
) -> tuple[int, int]:  # fmt: skip
    """Fill in a level that has a head: a counted map, list or array, or a struct, whose name may be written in front.

    Returns where its items begin, and where the text ends.
    """
    types, structs = forms.types, forms.structs
    kind = types[code, Form.KIND]
    if kind < STRUCT:
        if kind == ARRAY:
            levels[depth, Level.ELEMENT] = data[at]
            at += 1
        levels[depth, Level.LEFT] = unsigned(data, at, types[code, Form.ITEM])
        return at + types[code, Form.ITEM], j
    s = types[code, Form.ITEM]
    if kind == STRUCT32:
        s = struct_at(data, at, structs)
        levels[depth, Level.CLOSE] = CLOSE_NAMED
        j = copy(forms.names, structs[s, Struct.TEXT], structs[s, Struct.TEXT_END], out, j)
    at += structs[s, Struct.CODED]
    flags = packing_flags(data, at, structs[s, Struct.PACK])
    left = 0
    for m in range(structs[s, Struct.FIRST], structs[s, Struct.END]):
        if is_there(forms.members, m, flags, types):
            left += 1
    levels[depth, Level.LEFT] = left
    levels[depth, Level.MEMBER] = structs[s, Struct.FIRST]
    levels[depth, Level.FLAGS] = flags
    return at + structs[s, Struct.PACK], j


@kernel
def head_problem(data: Bytes, at: int, end: int, code: int, types: Integers, structs: Integers) -> int:
    """Return what is wrong with what stands before the items of a table, list, array or struct; -1 when nothing is."""
    kind = types[code, Form.KIND]
    need = types[code, Form.ITEM]
    s = -1
    if kind == ARRAY:
        need += 1
    elif kind == STRUCT:
        s = types[code, Form.ITEM]
    elif kind == STRUCT32:
        need = 2
        if at + need <= end:
            s = struct_at(data, at, structs)
    if s >= 0:
        need = structs[s, Struct.CODED] + structs[s, Struct.PACK]
    if at + need > end:
        return TABLE_MALFORMED
    if kind == ARRAY and unsigned(data, at + 1, 4) > 0:
        item = i64(data[at])
        if types[item, Form.KIND] == UNKNOWN:
            return TABLE_TYPE_UNKNOWN
    return -1


@kernel
def is_hollow(data: Bytes, at: int, types: Integers) -> bool:
    """Return whether an array has items that have no bytes, which could be as many as they like."""
    hollow: bool = types[i64(data[at]), Form.BYTES] == 0
    return hollow and unsigned(data, at + 1, 4) > 0


@kernel
def struct_at(data: Bytes, at: int, structs: Integers) -> int:
    """Return the number of the struct whose class and code are at `at`; -1 when it is unknown."""
    code = unsigned(data, at, 2)
    for s in range(len(structs)):
        if structs[s, Struct.CODE] == code:
            return s
    return -1


@kernel
def packing_flags(data: Bytes, at: int, width: int) -> int:
    """Return packing flags as one number, that of the first member lowest; all are set where there are none."""
    if width == 0:
        return -1
    flags = 0
    for k in range(width):
        flags |= i64(data[at + k]) << (8 * k)
    return flags


@kernel
def is_there(members: Integers, m: int, flags: int, types: Integers) -> bool:
    """Return whether a member of a struct is written: bits always are."""
    is_bit: bool = types[members[m, Member.FORM], Form.KIND] == BIT
    return is_bit or (flags >> members[m, Member.FLAG]) & 1 == 1
