"""JSON text, written by kernels: strings with their escapes, integers, decimals."""

import numpy as np

from amqpscope.dissector.fields.text import BACKSLASH, Bytes, copy, utf8_length, write_hex, write_hex_escape
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import i64, kernel, proven, u64
from amqpscope.dissector.kernels.words import HIGH_BITS, MASK, WORD, part, put_word, word

QUOTE, DOLLAR, COMMA, MINUS, DOT, ZERO, COLON, LETTER_E = (ord(c) for c in '"$,-.0:E')

LITERAL = 24
"""Bytes that a fixed text has in its table, its length in front."""
ESCAPE_U, NOT_ASCII = ord("u"), 1
BILLION, WORD_32 = 10**9, 1 << 32
ONES = 0x0101010101010101
SPACES, QUOTES, BACKSLASHES = (ord(c) * ONES for c in ' "\\')


def _escapes() -> Bytes:
    escapes = np.zeros(256, np.uint8)
    escapes[:0x20] = ESCAPE_U
    escapes[0x80:] = NOT_ASCII
    for byte, short in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
        escapes[byte] = short
    return escapes


LATIN = np.array([ord(c) for c in bytes(range(256)).decode("iso8859-15")], np.int64)
"""The code point of each byte in ISO 8859-15."""
ESCAPES = _escapes()
"""What follows the backslash for each byte; 0: it stands for itself, `NOT_ASCII`: it is part of a longer character."""


@kernel
def write_literal(literals: Bytes, which: int, out: Bytes, j: int) -> int:
    """Write one of the fixed texts; returns where it ends."""
    begin = which * LITERAL + 1
    return copy(literals, begin, begin + literals[begin - 1], out, j)


@proven
def is_plain(loaded: int) -> bool:
    """Return whether each byte of a word is printable ASCII that JSON takes as it is, or DEL."""
    quotes = loaded ^ u64(QUOTES)
    backslashes = loaded ^ u64(BACKSLASHES)
    high = ((loaded - u64(SPACES)) & MASK) | ((quotes - u64(ONES)) & MASK) | ((backslashes - u64(ONES)) & MASK)
    return (high | loaded) & u64(HIGH_BITS) == 0


@kernel
def write_string(data: Bytes, at: int, end: int, escapes: Bytes, out: Bytes, j: int) -> int:
    """Write text as the inside of a JSON string; returns where it ends, -1 when it is no UTF-8."""
    i = at
    while i + WORD <= end:
        loaded = word(data, i)
        if not is_plain(loaded):
            break
        put_word(out, j, loaded)
        i += WORD
        j += WORD
    left = end - i
    if 0 < left < WORD and i + WORD <= len(data) and j + WORD <= len(out):
        # most texts are short, or end so: what is written after the text is written over by what follows
        loaded = part(word(data, i), left) | ((u64(SPACES) << u64(8 * left)) & MASK)
        if is_plain(loaded):
            put_word(out, j, loaded)
            return j + left
    while i < end:
        byte = data[i]
        escape = escapes[byte]
        if escape == 0:
            out[j] = byte
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
                j = write_hex(byte, out, j + 2)
            i += 1
    return j


@kernel
def write_escaped(data: Bytes, at: int, end: int, escapes: Bytes, out: Bytes, j: int) -> int:
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
def write_digits(value: int, least: int, out: Bytes, j: int) -> int:
    """Write an integer from 0 to 10**12 with at least this number of digits; returns where it ends."""
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
def write_integer(data: Bytes, at: int, width: int, signed: bool, out: Bytes, j: int) -> int:
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
def write_decimal(data: Bytes, at: int, width: int, out: Bytes, j: int) -> int:
    """Write scale and number, of 4 or 8 bytes, as Python's `Decimal` does.

    That is the General Decimal Arithmetic's to-scientific-string.
    """
    scale = i64(data[at])
    end = write_integer(data, at + 1, width, True, out, j)
    if data[at + 1] >= 0x80:
        j += 1  # after the minus
    digits = end - j
    exponent = digits - 1 - scale
    if scale == 0:
        return end
    point = digits - scale
    zeros = 0
    if exponent < -6:
        point = 1
        if digits > 1:
            end = shift(out, j + 1, end, 1)
            out[j + 1] = DOT
        out[end] = LETTER_E
        out[end + 1] = MINUS
        return write_digits(-exponent, 1, out, end + 2)
    if point <= 0:
        zeros = 1 - point
        point = 1
        end = shift(out, j, end, zeros)
        for k in range(j, j + zeros):
            out[k] = ZERO
    end = shift(out, j + point, end, 1)
    out[j + point] = DOT
    return end


@kernel
def shift(out: Bytes, at: int, end: int, by: int) -> int:
    """Move what is written from `at` on to the right; returns where it ends."""
    i = end
    while i > at:
        i -= 1
        out[i + by] = out[i]
    return end + by


@kernel
def write_bytes(data: Bytes, at: int, end: int, out: Bytes, j: int) -> int:
    """Write bytes as hexadecimal digits; returns where that ends."""
    for k in range(at, end):
        j = write_hex(data[k], out, j)
    return j


@kernel
def write_uuid(data: Bytes, at: int, out: Bytes, j: int) -> int:
    """Write a UUID of 16 bytes (RFC 9562, section 4); returns where it ends."""
    for k in range(16):
        if k in (4, 6, 8, 10):
            out[j] = MINUS
            j += 1
        j = write_hex(data[at + k], out, j)
    return j


@kernel
def write_characters(
    data: Bytes, at: int, end: int, width: int, escapes: Bytes, latin: Ints, out: Bytes, j: int
) -> int:
    """Write text in ISO 8859-15 (width 1) or UTF-16 (2, big-endian) as the inside of a JSON string.

    Returns where it ends; -1 when it is no such text.
    """
    i = at
    while i < end:
        if i + width > end:
            return -1
        character = i64(latin[data[i]]) if width == 1 else unsigned(data, i, 2)
        i += width
        if 0xD800 <= character < 0xE000:
            low = unsigned(data, i, 2) if i + 2 <= end else 0
            if character >= 0xDC00 or low < 0xDC00 or low >= 0xE000:
                return -1
            character = 0x10000 + (character - 0xD800) * 0x400 + low - 0xDC00
            i += 2
        j = write_character(character, escapes, out, j)
    return j


@kernel
def write_character(character: int, escapes: Bytes, out: Bytes, j: int) -> int:
    """Write one code point inside of a JSON string, in UTF-8 or escaped."""
    if character < 0x80:
        if escapes[character]:
            out[j] = BACKSLASH
            out[j + 1] = escapes[character]
            j += 2
            if escapes[character] != ESCAPE_U:
                return j
            out[j] = ZERO
            out[j + 1] = ZERO
            return write_hex(character, out, j + 2)
        out[j] = character
        return j + 1
    more = 1
    first = 0xC0
    if character >= 0x10000:
        more = 3
        first = 0xF0
    elif character >= 0x800:
        more = 2
        first = 0xE0
    out[j] = first | (character >> (6 * more))
    for k in range(more):
        out[j + 1 + k] = 0x80 | ((character >> (6 * (more - 1 - k))) & 0x3F)
    return j + 1 + more
