"""The walk over tables, maps, lists, arrays and structs that writes them as JSON text; see `tables` for what it writes.

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
    M_FLAG,
    M_FORM,
    M_TEXT,
    M_TEXT_END,
    RANGES,
    S_CODE,
    S_CODED,
    S_END,
    S_FIRST,
    S_PACK,
    S_TEXT,
    S_TEXT_END,
    SIGNED,
    STRING,
    STRUCT,
    STRUCT32,
    T_ITEM,
    T_KIND,
    T_WIDTH,
    TABLE,
    UNKNOWN,
    UNSIGNED,
    UUID,
)
from amqpscope.dissector.fields.json_text import (
    COLON,
    COMMA,
    DOLLAR,
    QUOTE,
    write_escaped,
    write_integer,
    write_literal,
    write_string,
    write_uuid,
)
from amqpscope.dissector.fields.problems import TABLE_MALFORMED, TABLE_TOO_DEEP, TABLE_TYPE_UNKNOWN, TEXT_NOT_UTF8
from amqpscope.dissector.fields.text import Integers, Octets, copy
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
from amqpscope.dissector.kernels.kernel import called, i64, kernel

DEPTH = 64
"""Levels of tables, arrays and structs, the outermost included."""
PROBLEMS = 5
"""One value has at most this many problems: wrong texts, ranges, structs and depth are told once, what ends it once."""

CLOSE_NAMED = 0
"""Of a struct that its name was written in front of: two braces."""
L_END, L_LEFT, L_CLOSE, L_ELEMENT, L_MEMBER, L_FLAGS, L_HEIGHT = range(7)
"""Columns of levels: where it ends, items left (-1: to the end), what closes it, the type of all its items or -1, the
next member of a struct or -1, and its flags."""


@kernel
def render_values(
    data: Octets, at: Integers, size: Integers, form: Integers, types: Integers, structs: Integers, members: Integers,
    names: Octets, latin: Integers, escapes: Octets, literals: Octets, stack: Integers, out: Octets, sizes: Integers,
    trace: Integers, floats: Integers, problems: Integers, used: Integers,
) -> None:  # fmt: skip
    """Render all values, whose bytes behind their length these are.

    Floats are left out and listed in `floats`: place in `out`, value, place in `data`, width. `used` gets the bytes of
    `out`, the floats and the problems.
    """
    j = 0
    n_floats = 0
    n_problems = 0
    for e in range(len(at)):
        begin = j
        trace[e, 0] = -1
        trace[e, 1] = 0
        told = 0
        depth = 0
        # of the level at hand, as in the stack
        end = 0
        left = -1
        close = CLOSE_OBJECT
        element = -1
        member = -1
        flags = 0
        first = True
        set_flag = True
        code = form[e]
        value = at[e]
        after = value + size[e]
        start = value
        here = value
        i = after
        kind = types[code, T_KIND]
        broken = -1
        if kind >= ARRAY or (kind >= TABLE and types[code, T_ITEM] > 0):
            broken = head_problem(data, value, after, code, types, structs)
        if broken >= 0:
            n_problems = problem(e, broken, value, problems, n_problems)
            out[j] = OPEN_ARRAY if kind in (LIST, ARRAY) else OPEN_OBJECT
            out[j + 1] = CLOSE_ARRAY if kind in (LIST, ARRAY) else CLOSE_OBJECT
            sizes[e] = 2
            j += 2
            continue
        measured = True
        while True:
            if not measured:
                if broken >= 0 or left == 0 or (left < 0 and i >= end):
                    if close == CLOSE_NAMED:
                        out[j] = CLOSE_OBJECT
                        out[j + 1] = CLOSE_OBJECT
                        j += 2
                    else:
                        out[j] = close
                        j += 1
                    i = end
                    depth -= 1
                    if depth == 0:
                        break
                    end = stack[depth - 1, L_END]
                    left = stack[depth - 1, L_LEFT]
                    close = stack[depth - 1, L_CLOSE]
                    element = stack[depth - 1, L_ELEMENT]
                    member = stack[depth - 1, L_MEMBER]
                    flags = stack[depth - 1, L_FLAGS]
                    first = False
                    continue
                # measure: key, type code, length, value
                named = close != CLOSE_ARRAY and member < 0
                start = i
                key = i + 1
                code = element
                if member >= 0:
                    while not is_there(members, member, flags, types):
                        member += 1
                    code = members[member, M_FORM]
                elif i >= end:
                    broken = TABLE_MALFORMED
                elif named:
                    i = key + data[i]
                    if i >= end:
                        broken = TABLE_MALFORMED
                key_end = i
                here = i
                if broken < 0 and code < 0:
                    code = i64(data[i])
                    i += 1
                kind = UNKNOWN
                value = i
                after = i
                if broken < 0:
                    kind = types[code, T_KIND]
                    width = types[code, T_WIDTH]
                    after = value + width
                    if kind == UNKNOWN:
                        broken = TABLE_TYPE_UNKNOWN
                    elif after > end:
                        broken = TABLE_MALFORMED
                    elif kind >= STRING:
                        value = after
                        after += unsigned(data, i, width)
                        if after > end:
                            broken = TABLE_MALFORMED
                        elif after > value and (kind >= ARRAY or (kind >= TABLE and types[code, T_ITEM] > 0)):
                            broken = head_problem(data, value, after, code, types, structs)
                if broken >= 0:
                    n_problems = problem(e, broken, start, problems, n_problems)
                    continue
                # write
                if not first:
                    out[j] = COMMA
                    j += 1
                first = False
                i = after
                if left > 0:
                    left -= 1
                if member >= 0:
                    j = copy(names, members[member, M_TEXT], members[member, M_TEXT_END], out, j)
                    set_flag = (flags >> members[member, M_FLAG]) & 1 == 1
                    member += 1
                elif named:
                    if depth == 1 and key_end - key == 11 and trace[e, 0] < 0 and is_traceparent(data, key, literals):
                        trace[e, 0] = value
                        trace[e, 1] = after - value if kind in (STRING, BYTES) else 0
                    out[j] = QUOTE
                    j += 1
                    if key < key_end and data[key] == DOLLAR:
                        out[j] = DOLLAR
                        j += 1
                    done = write_string(data, key, key_end, escapes, out, j)
                    if done < 0:
                        done = write_escaped(data, key, key_end, escapes, out, j)
                        if told & (1 << TEXT_NOT_UTF8) == 0:
                            told |= 1 << TEXT_NOT_UTF8
                            n_problems = problem(e, TEXT_NOT_UTF8, key, problems, n_problems)
                    out[done] = QUOTE
                    out[done + 1] = COLON
                    j = done + 2
            measured = False
            # value
            if kind == STRING:
                out[j] = QUOTE
                done = write_string(data, value, after, escapes, out, j + 1)
                if done >= 0:
                    out[done] = QUOTE
                    j = done + 1
                else:
                    j = write_hexadecimal(data, value, after, literals, STRING_OPEN, out, j)
            elif kind >= TABLE:
                counted = kind >= ARRAY or types[code, T_ITEM] > 0
                odd = -1
                if counted and after == value and depth > 0:
                    j = write_literal(literals, NULL, out, j)
                elif kind == STRUCT32 and struct_at(data, value, structs) < 0:
                    j = write_hexadecimal(data, value, after, literals, STRUCT_OPEN, out, j)
                    odd = TABLE_TYPE_UNKNOWN
                elif kind == ARRAY and is_hollow(data, value, types):
                    j = write_count(data, value, literals, out, j)
                elif depth == DEPTH:
                    j = write_literal(literals, NULL, out, j)
                    odd = TABLE_TOO_DEEP
                else:
                    if depth > 0:
                        stack[depth - 1, L_LEFT] = left
                        stack[depth - 1, L_MEMBER] = member
                    i = value
                    end = after
                    close = CLOSE_ARRAY if kind in (LIST, ARRAY) else CLOSE_OBJECT
                    left = -1
                    element = -1
                    member = -1
                    flags = 0
                    stack[depth, L_END] = end
                    stack[depth, L_CLOSE] = close
                    stack[depth, L_ELEMENT] = element
                    stack[depth, L_FLAGS] = flags
                    if counted:
                        i, j = open_counted(data, value, code, types, structs, members, names, stack, depth, out, j)
                        left = stack[depth, L_LEFT]
                        close = stack[depth, L_CLOSE]
                        element = stack[depth, L_ELEMENT]
                        member = stack[depth, L_MEMBER]
                        flags = stack[depth, L_FLAGS]
                    depth += 1
                    first = True
                    out[j] = OPEN_ARRAY if close == CLOSE_ARRAY else OPEN_OBJECT
                    j += 1
                if odd >= 0 and told & (1 << odd) == 0:
                    told |= 1 << odd
                    n_problems = problem(e, odd, here, problems, n_problems)
            elif kind in (SIGNED, UNSIGNED):
                j = write_integer(data, value, after - value, kind == SIGNED, out, j)
            elif kind == BOOLEAN:
                j = write_literal(literals, TRUE if data[value] else FALSE, out, j)
            elif kind == FLOAT:
                floats[n_floats, 0] = j
                floats[n_floats, 1] = e
                floats[n_floats, 2] = value
                floats[n_floats, 3] = after - value
                n_floats += 1
            elif kind == BIT:
                j = write_literal(literals, TRUE if set_flag else FALSE, out, j)
            elif kind == UUID and depth == 0:
                j = write_uuid(data, value, out, j)
            else:
                if (
                    kind == RANGES
                    and (after - value) % (2 * types[code, T_ITEM])
                    and told & (1 << TABLE_MALFORMED) == 0
                ):
                    told |= 1 << TABLE_MALFORMED
                    n_problems = problem(e, TABLE_MALFORMED, here, problems, n_problems)
                j = write_rare(data, value, after, kind, types[code, T_ITEM], literals, latin, escapes, out, j)
            if depth == 0:
                break
        sizes[e] = j - begin
    used[0] = j
    used[1] = n_floats
    used[2] = n_problems


@kernel
def problem(e: int, code: int, at: int, problems: Integers, n: int) -> int:
    """Note a problem; returns how many there are."""
    problems[n, 0] = e
    problems[n, 1] = code
    problems[n, 2] = at
    return n + 1


@called
def open_counted(
    data: Octets, at: int, code: int, types: Integers, structs: Integers, members: Integers, names: Octets,
    stack: Integers, depth: int, out: Octets, j: int,
) -> tuple[int, int]:  # fmt: skip
    """Open a level that has a head: a counted map, list or array, or a struct, whose name may be written in front.

    Returns where its items begin, and where the text ends.
    """
    kind = types[code, T_KIND]
    if kind < STRUCT:
        if kind == ARRAY:
            stack[depth, L_ELEMENT] = data[at]
            at += 1
        stack[depth, L_LEFT] = unsigned(data, at, types[code, T_ITEM])
        stack[depth, L_MEMBER] = -1
        return at + types[code, T_ITEM], j
    s = types[code, T_ITEM]
    if kind == STRUCT32:
        s = struct_at(data, at, structs)
        stack[depth, L_CLOSE] = CLOSE_NAMED
        j = copy(names, structs[s, S_TEXT], structs[s, S_TEXT_END], out, j)
    at += structs[s, S_CODED]
    flags = packing_flags(data, at, structs[s, S_PACK])
    left = 0
    for m in range(structs[s, S_FIRST], structs[s, S_END]):
        if is_there(members, m, flags, types):
            left += 1
    stack[depth, L_LEFT] = left
    stack[depth, L_MEMBER] = structs[s, S_FIRST]
    stack[depth, L_FLAGS] = flags
    return at + structs[s, S_PACK], j


@called
def head_problem(data: Octets, at: int, end: int, code: int, types: Integers, structs: Integers) -> int:
    """What is wrong with what stands in front of the items of a table, list, array or struct; -1 when nothing is."""
    kind = types[code, T_KIND]
    need = types[code, T_ITEM]
    s = -1
    if kind == ARRAY:
        need += 1
    elif kind == STRUCT:
        s = types[code, T_ITEM]
    elif kind == STRUCT32:
        need = 2
        if at + need <= end:
            s = struct_at(data, at, structs)
    if s >= 0:
        need = structs[s, S_CODED] + structs[s, S_PACK]
    if at + need > end:
        return TABLE_MALFORMED
    if kind == ARRAY and unsigned(data, at + 1, 4) > 0:
        item = i64(data[at])
        if types[item, T_KIND] == UNKNOWN:
            return TABLE_TYPE_UNKNOWN
    return -1


@called
def is_hollow(data: Octets, at: int, types: Integers) -> bool:
    """Whether an array has items that have no bytes, which could be as many as they like."""
    hollow: bool = types[i64(data[at]), T_WIDTH] == 0
    return hollow and unsigned(data, at + 1, 4) > 0


@called
def struct_at(data: Octets, at: int, structs: Integers) -> int:
    """Number of the struct whose class and code are at `at`; -1 when nobody knows it."""
    code = unsigned(data, at, 2)
    for s in range(len(structs)):
        if structs[s, S_CODE] == code:
            return s
    return -1


@called
def packing_flags(data: Octets, at: int, width: int) -> int:
    """Packing flags as one number, that of the first member lowest; all are set where there are none."""
    if width == 0:
        return -1
    flags = 0
    for k in range(width):
        flags |= i64(data[at + k]) << (8 * k)
    return flags


@kernel
def is_there(members: Integers, m: int, flags: int, types: Integers) -> bool:
    """Whether a member of a struct is written: bits always are."""
    is_bit: bool = types[members[m, M_FORM], T_KIND] == BIT
    return is_bit or (flags >> members[m, M_FLAG]) & 1 == 1
