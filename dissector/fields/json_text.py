"""JSON text, written by kernels: strings with their escapes, integers, decimals."""

import numpy as np

from amqpscope.dissector.fields.text import BACKSLASH, Octets, copy, utf8_length, write_hex, write_hex_escape
from amqpscope.dissector.kernels.kernel import kernel, proven, u64
from amqpscope.dissector.kernels.words import HIGH_BITS, MASK, WORD, put_word, unsigned, word

QUOTE, DOLLAR, COMMA, MINUS, DOT, ZERO, COLON, LETTER_E = (ord(c) for c in '"$,-.0:E')

ESCAPE_U, NOT_ASCII = ord("u"), 1
BILLION, WORD_32 = 10**9, 1 << 32
ONES = 0x0101010101010101
SPACES, QUOTES, BACKSLASHES = (ord(c) * ONES for c in ' "\\')


def _escapes() -> Octets:
    escapes = np.zeros(256, np.uint8)
    escapes[:0x20] = ESCAPE_U
    escapes[0x80:] = NOT_ASCII
    for byte, short in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
        escapes[byte] = short
    return escapes


ESCAPES = _escapes()
"""What follows the backslash for each byte; 0: it stands for itself, `NOT_ASCII`: it is part of a longer character."""


@kernel
def write_literal(literals: Octets, which: int, out: Octets, j: int) -> int:
    """Write one of the fixed texts; returns where it ends."""
    begin = which * 16 + 1
    return copy(literals, begin, begin + literals[begin - 1], out, j)


@proven
def is_plain(octets: int) -> bool:
    """Whether each byte of a word is printable ASCII that JSON takes as it is, or DEL."""
    quotes = octets ^ u64(QUOTES)
    backslashes = octets ^ u64(BACKSLASHES)
    high = ((octets - u64(SPACES)) & MASK) | ((quotes - u64(ONES)) & MASK) | ((backslashes - u64(ONES)) & MASK)
    return (high | octets) & u64(HIGH_BITS) == 0


@kernel
def write_string(data: Octets, at: int, end: int, escapes: Octets, out: Octets, j: int) -> int:
    """Write text as the inside of a JSON string; returns where it ends, -1 when it is no UTF-8."""
    i = at
    while i + WORD <= end:
        octets = word(data, i)
        if not is_plain(octets):
            break
        put_word(out, j, octets)
        i += WORD
        j += WORD
    while i < end:
        octet = data[i]
        escape = escapes[octet]
        if escape == 0:
            out[j] = octet
            j += 1
            i += 1
        elif escape == NOT_ASCII:
            length = utf8_length(data, i, end)
            if length == 0:
                return -1
            j = copy(data, i, i + length, out, j)
            i += length
        else:
            out[j] = BACKSLASH
            out[j + 1] = escape
            j += 2
            if escape == ESCAPE_U:
                out[j] = ZERO
                out[j + 1] = ZERO
                j = write_hex(octet, out, j + 2)
            i += 1
    return j


@kernel
def write_escaped(data: Octets, at: int, end: int, escapes: Octets, out: Octets, j: int) -> int:
    r"""Write bytes of which some are no UTF-8 as the inside of a JSON string, with `\\xNN` for each wrong one."""
    i = at
    while i < end:
        length = utf8_length(data, i, end)
        if length:
            j = write_string(data, i, i + length, escapes, out, j)
            i += length
        else:
            out[j] = BACKSLASH
            out[j + 1] = BACKSLASH
            j = write_hex_escape(data[i], out, j + 2)
            i += 1
    return j


@kernel
def write_digits(value: int, least: int, out: Octets, j: int) -> int:
    """Write an integer from 0 to 10**12 with at least so many digits; returns where it ends."""
    digits = 1
    bound = 10
    while bound <= value:
        bound *= 10
        digits += 1
    digits = max(digits, least)
    i = j + digits
    while i > j:
        i -= 1
        out[i] = ZERO + value % 10
        value //= 10
    return j + digits


@kernel
def write_integer(data: Octets, at: int, width: int, signed: bool, out: Octets, j: int) -> int:
    """Write an integer of 1, 2, 4 or 8 bytes; returns where it ends."""
    # 64 bits do not fit int64 when they are unsigned, or the magnitude of the least: two words.
    high = 0
    low = 0
    if width == 8:
        high = unsigned(data, at, 4)
        low = unsigned(data, at + 4, 4)
    else:
        low = unsigned(data, at, width)
    if signed and data[at] >= 0x80:
        out[j] = MINUS
        j += 1
        if width < 8:
            low = (1 << (8 * width)) - low
        elif low == 0:
            high = WORD_32 - high
        else:
            high = WORD_32 - 1 - high
            low = WORD_32 - low
    if high == 0:
        return write_digits(low, 1, out, j)
    rest = high % BILLION * WORD_32 + low
    j = write_digits(high // BILLION * WORD_32 + rest // BILLION, 1, out, j)
    return write_digits(rest % BILLION, 9, out, j)


@kernel
def write_decimal(data: Octets, at: int, out: Octets, j: int) -> int:
    """Write scale and number as Python's `Decimal` does (the General Decimal Arithmetic's to-scientific-string)."""
    scale = 0 + data[at]
    value = unsigned(data, at + 1, 4)
    if value >= WORD_32 // 2:
        value = WORD_32 - value
        out[j] = MINUS
        j += 1
    power = 1
    digits = 1
    while power * 10 <= value:
        power *= 10
        digits += 1
    exponent = digits - 1 - scale
    point = digits - scale
    if exponent < -6:
        point = 1
    elif point <= 0:
        out[j] = ZERO
        out[j + 1] = DOT
        j += 2
        for _ in range(-point):
            out[j] = ZERO
            j += 1
        point = digits
    for k in range(digits):
        if k == point:
            out[j] = DOT
            j += 1
        out[j] = ZERO + value // power % 10
        power //= 10
        j += 1
    if exponent < -6:
        out[j] = LETTER_E
        out[j + 1] = MINUS
        j = write_digits(-exponent, 1, out, j + 2)
    return j
