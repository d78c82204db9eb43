r"""Bytes of records that are text: gathered into one buffer of valid UTF-8, as Arrow wants it.

Where bytes are no UTF-8 (RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF), each of them is written
as the four characters `\xNN`, and the entry is reported. Captures are full of texts that are plain ASCII, so that is
tried first.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amqpscope.dissector.kernels.kernel import call, kernel, proven, u64
from amqpscope.dissector.kernels.words import HIGH_BITS, WORD, part, put_word, word

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

BACKSLASH, LETTER_X = ord("\\"), ord("x")
GROWTH = 4
"""A byte becomes at most this many."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Entries of text, one after the other."""

    data: Bytes
    """Valid UTF-8."""
    sizes: Integers
    """Bytes of each entry in `data`."""
    invalid: Integers
    """Entries that were not UTF-8, ascending."""
    invalid_at: Integers
    """Where in the data the first wrong byte of each of these is."""


def gather(data: Bytes, at: Integers, size: Integers, compiled: bool) -> Texts:
    """Copy `size[e]` bytes from `data[at[e]]` on for every entry e, all of them within `data`."""
    total = int(size.sum())
    content = np.empty(total + WORD, np.uint8)
    nothing = np.empty(0, np.int64)
    if total:
        is_ascii = call(copy_entries, compiled, data, at, size, content)
        if not is_ascii:
            content = np.empty(GROWTH * total, np.uint8)
            sizes = np.empty(len(at), np.int64)
            wrong = np.empty(len(at), np.int64)
            used = call(copy_escaped, compiled, data, at, size, content, sizes, wrong)
            invalid = np.flatnonzero(wrong >= 0)
            return Texts(content[:used].copy(), sizes, invalid, wrong[invalid])
    return Texts(content[:total], size, nothing, nothing)


@kernel
def copy(source: Bytes, at: int, end: int, target: Bytes, j: int) -> int:
    """Copy `source[at:end]` to `target` from j on; returns where it ends there."""
    for i in range(at, end):
        target[j] = source[i]
        j += 1
    return j


@proven
def copy_entries(data: Bytes, at: Integers, size: Integers, target: Bytes) -> bool:
    """Copy all entries, which lie within `data`, as they are; returns whether all bytes are ASCII.

    Bounds: `target` has the sum of their sizes and a word more, so that whole words may be written, of which the next
    entry covers what is too much. Whole words are read where a word more lies in `data`.
    """
    seen = u64(0)
    j = 0
    for e in range(len(at)):
        p = at[e]
        left = size[e]
        if p + left + WORD <= len(data):
            while left >= WORD:
                loaded = word(data, p)
                put_word(target, j, loaded)
                seen = seen | loaded
                p += WORD
                j += WORD
                left -= WORD
            if left > 0:
                loaded = word(data, p)
                put_word(target, j, loaded)
                seen = seen | part(loaded, left)
                j += left
        else:
            for i in range(p, p + left):
                target[j] = data[i]
                seen = seen | u64(data[i])
                j += 1
    return seen & u64(HIGH_BITS) == 0


@kernel
def copy_escaped(data: Bytes, at: Integers, size: Integers, target: Bytes, sizes: Integers, wrong: Integers) -> int:
    """Copy all entries with wrong bytes escaped; `wrong[e]` is where the first of them is, or -1."""
    j = 0
    for e in range(len(at)):
        i = at[e]
        end = i + size[e]
        begin = j
        wrong[e] = -1
        while i < end:
            length = utf8_length(data, i, end)
            if length == 0:
                if wrong[e] < 0:
                    wrong[e] = i
                target[j] = BACKSLASH
                j = write_hex_escape(data[i], target, j + 1)
                i += 1
            else:
                j = copy(data, i, i + length, target, j)
                i += length
        sizes[e] = j - begin
    return j


@kernel
def utf8_length(data: Bytes, at: int, end: int) -> int:
    """Return the length of the UTF-8 sequence at `at`, before `end`; 0 where there is none (RFC 3629, section 4)."""
    first = data[at]
    if first < 0x80:
        return 1
    low = 0x80
    high = 0xBF
    if first < 0xC2:
        return 0
    if first < 0xE0:
        length = 2
    elif first < 0xF0:
        length = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif first < 0xF5:
        length = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return 0
    if at + length > end or data[at + 1] < low or data[at + 1] > high:
        return 0
    for i in range(at + 2, at + length):
        if data[i] < 0x80 or data[i] > 0xBF:
            return 0
    return length


@kernel
def hex_digit(value: int) -> int:
    """Return the lower-case ASCII digit of 0 to 15."""
    if value < 10:
        return 48 + value
    return 87 + value


@kernel
def write_hex(byte: int, target: Bytes, j: int) -> int:
    """Write a byte as two hexadecimal digits; returns where it ends."""
    target[j] = hex_digit(byte // 16)
    target[j + 1] = hex_digit(byte % 16)
    return j + 2


@kernel
def write_hex_escape(byte: int, target: Bytes, j: int) -> int:
    """Write a byte as `xNN`; returns where it ends."""
    target[j] = LETTER_X
    return write_hex(byte, target, j + 1)
