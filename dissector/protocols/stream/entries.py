"""Entries of publishes and chunks: messages, and sub-batches of them."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32, proven32
from amqpscope.dissector.kernels.kernel import i64, kernel, proven
from amqpscope.dissector.protocols.stream.state import CUT, DELIVERED, FILTERED, Entry

NULL = 0xFFFF
NEW_HEAD, OLD_HEAD = 11, 7
"""Bytes of a sub-batch's head; the shorter one, of early 2021, lacks the size when unpacked."""


@proven
def sub_batch_head(data: Array, p: int, end: int, limit: int) -> int:
    """Return the size of a sub-batch's head; 0 when too few bytes are there, -1 when neither head fits.

    Where a new head makes sense it is one: the stored size stays within `limit`, and is that of the unpacked bytes
    when these are not packed. In an old one the same place holds the first bytes of the data.

    Bounds: p is not below 0, and nothing is read from `end` on, which is not beyond the data.
    """
    if p + OLD_HEAD > end:
        return 0
    first = be32(data, p + 3)
    if p + NEW_HEAD > end:
        return OLD_HEAD if p + OLD_HEAD + first == limit else 0
    stored = be32(data, p + 7)
    within = p + NEW_HEAD + stored <= limit
    packed = data[p] & 0x70 != 0
    if within and (packed or first == stored):
        return NEW_HEAD
    if p + OLD_HEAD + first <= limit:
        return OLD_HEAD
    return NEW_HEAD if within else -1


@proven
def read_entries(
    data: Array, at: Array, end: Array, limit: Array, kind: Array, ends: Array, left: Array, entries: Array,
) -> int:  # fmt: skip
    """Read the entries of all regions; returns their number.

    A region is bytes from `at` to `end`, of which `at` is moved after the last entry read; `left` is the number of
    entries that there must be, and becomes the number not found. `limit` is where the frame ends, or would if it were
    all there.

    Bounds: p is not below `at`, and nothing is read from e on, which is not beyond the data. An entry has at least the
    bytes that `entries` has room for one column each.
    """
    n = 0
    for r in range(len(at)):
        p = max(at[r], 0)
        e = min(end[r], len(data))
        ordinal = 0
        while left[r] > 0:
            q, number, large, value, value_length = read_number(data, p, e, kind[r])
            if q < 0:
                break
            q, length, coding, count, unpacked = read_length(data, q, e, kind[r], limit[r])
            if q < 0:
                break
            missing = max(q + length - e, 0)
            if missing > 0 and (ends[r] != CUT or q + length > limit[r]):
                break
            entries[Entry.REGION, n] = r
            entries[Entry.ORDINAL, n] = ordinal
            entries[Entry.FIRST, n] = ordinal
            entries[Entry.NUMBER, n] = number
            entries[Entry.LARGE, n] = large
            entries[Entry.OFFSET, n] = q
            entries[Entry.LENGTH, n] = length - missing
            entries[Entry.MISSING, n] = missing
            entries[Entry.CODING, n] = coding
            entries[Entry.COUNT, n] = count
            entries[Entry.SIZE, n] = unpacked
            entries[Entry.FILTER, n] = value
            entries[Entry.FILTER_LENGTH, n] = value_length
            entries[Entry.OPEN, n] = 1
            n += 1
            ordinal += count
            p = q + length - missing
            left[r] -= 1
        at[r] = p
    return n


@proven
def read_number(data: Array, p: int, end: int, kind: int) -> tuple[int, int, int, int, int]:
    """Read the publishing id and filter value that stand before an entry.

    Returns where they end (-1: not all of them is there), and `NUMBER`, `LARGE`, `FILTER` and `FILTER_LENGTH` of it.

    Bounds: as `read_entries`.
    """
    if kind == DELIVERED:
        return p, 0, -1, 0, -1
    if p + 8 > end:
        return -1, 0, -1, 0, -1
    large = i64(data[p]) >> 7
    number = (proven32(data, p) & 0x7FFFFFFF) << 32 | proven32(data, p + 4)
    p += 8
    if kind != FILTERED:
        return p, number, large, 0, -1
    if p + 2 > end:
        return -1, 0, -1, 0, -1
    size = be16(data, p)
    p += 2
    if size == NULL:
        return p, number, large, 0, -1
    if p + size > end:
        return -1, 0, -1, 0, -1
    return p + size, number, large, p, size


@proven
def read_length(data: Array, p: int, end: int, kind: int, limit: int) -> tuple[int, int, int, int, int]:
    """Read what an entry says of its bytes, a message or a sub-batch.

    Returns where they begin (-1: that is not there, or makes no sense), and `LENGTH`, `CODING`, `COUNT` and `SIZE` of
    it, the length as announced.

    Bounds: as `read_entries`.
    """
    if p + 4 > end:
        return -1, 0, -1, 1, -1
    if data[p] < 0x80:
        return p + 4, proven32(data, p), -1, 1, -1
    head = sub_batch_head(data, p, end, limit) if kind != FILTERED else -1
    if head <= 0:
        return -1, 0, -1, 1, -1
    coding = (i64(data[p]) >> 4) & 7
    unpacked = be32(data, p + 3)
    if head == NEW_HEAD:
        return p + head, be32(data, p + 7), coding, be16(data, p + 1), unpacked
    return p + head, unpacked, coding, be16(data, p + 1), unpacked if coding == 0 else -1


@kernel
def read_mixed(
    data: Array, at: Array, end: Array, left: Array, entries: Array, start: Array, plain: Array
) -> int:  # fmt: skip
    """Read entries as `read_entries` does, of regions that end with their frame and have filter values in some entries.

    Some clients leave the value out altogether where there is none. An entry is read with a value first, then without,
    until the last one ends where the region does; `start` and `plain` hold the entries up to the current one.
    """
    n = 0
    for r in range(len(at)):
        count = left[r]
        depth = 0
        steps = 0
        start[0] = at[r]
        plain[0] = 0
        while 0 <= depth < count and steps < 8 * count + 64:
            steps += 1
            q = start[depth] + 8
            if plain[depth] == 0 and q + 2 <= end[r]:
                q += 2 + (0 if be16(data, q) == NULL else be16(data, q))
            if plain[depth] <= 1 and q + 4 <= end[r] and data[q] < 0x80:
                q += 4 + be32(data, q)
                if q + 12 * (count - depth - 1) <= end[r] and (depth + 1 < count or q == end[r]):
                    depth += 1
                    if depth < count:
                        start[depth] = q
                        plain[depth] = 0
                    continue
            plain[depth] += 1
            while depth >= 0 and plain[depth] > 1:
                depth -= 1
                if depth >= 0:
                    plain[depth] += 1
        if depth < count:
            continue
        for k in range(count):
            p = start[k]
            number = i64(data[p]) & 0x7F
            for i in range(p + 1, p + 8):
                number = number << 8 | i64(data[i])
            q = p + 8
            value_length = -1
            if plain[k] == 0:
                value_length = -1 if be16(data, q) == NULL else be16(data, q)
                q += 2 + max(value_length, 0)
            entries[Entry.REGION, n] = r
            entries[Entry.ORDINAL, n] = k
            entries[Entry.FIRST, n] = k
            entries[Entry.NUMBER, n] = number
            entries[Entry.LARGE, n] = i64(data[p]) >> 7
            entries[Entry.OFFSET, n] = q + 4
            entries[Entry.LENGTH, n] = be32(data, q)
            entries[Entry.MISSING, n] = 0
            entries[Entry.CODING, n] = -1
            entries[Entry.COUNT, n] = 1
            entries[Entry.SIZE, n] = -1
            entries[Entry.FILTER, n] = p + 10
            entries[Entry.FILTER_LENGTH, n] = value_length
            entries[Entry.OPEN, n] = 1
            n += 1
        at[r] = end[r]
        left[r] = 0
    return n


@kernel
def entry_bytes(data: Array, p: int, end: int, kind: int, limit: int) -> int:
    """Return the size of the entry at p as far as it is visible: at least the bytes up to `end`."""
    least: int = end - p
    q = p
    if kind != DELIVERED:
        q += 8
    if kind == FILTERED:
        if q + 2 > end:
            return least
        if be16(data, q) != NULL:
            q += be16(data, q)
        q += 2
    if q + 4 > end:
        return least
    if data[q] < 0x80:
        return q + 4 + be32(data, q) - p
    head = sub_batch_head(data, q, end, limit)
    if head <= 0:
        return least
    return q + head + be32(data, q + head - 4) - p


@kernel
def count_inner(data: Array, at: Array, size: Array, most: Array, found: Array) -> None:
    """Count the whole messages in each unpacked sub-batch, up to `most`; the complement with bytes left."""
    for b in range(len(at)):
        p = at[b]
        end = p + size[b]
        n = 0
        while n < most[b] and p + 4 <= end and p + 4 + be32(data, p) <= end:
            p += 4 + be32(data, p)
            n += 1
        found[b] = n if p == end else ~n


@proven
def open_batches(data: Array, entries: Array, batches: Array, at: Array, counts: Array, records: Array) -> None:
    """Put all records in a row: messages as they are, sub-batches as the messages in them.

    `batches` are the entries that are sub-batches, ascending, `at` where the bytes of each lie unpacked, `counts` the
    messages in them; of those that cannot be read one record stands for all.

    Bounds: `count_inner` saw the messages in the data; `records` has a column for each of them and of the others.
    """
    n = 0
    b = 0
    for e in range(entries.shape[1]):
        if b >= len(batches) or batches[b] != e:
            for row in range(Entry.WIDTH):
                records[row, n] = entries[row, e]
            n += 1
            continue
        p = at[b]
        is_open = entries[Entry.OPEN, e] == 1
        for k in range(counts[b] if is_open else 1):
            for row in range(Entry.WIDTH):
                records[row, n] = entries[row, e]
            records[Entry.LENGTH, n] = 0
            if is_open:
                records[Entry.ORDINAL, n] = entries[Entry.ORDINAL, e] + k
                records[Entry.OFFSET, n] = p + 4
                records[Entry.LENGTH, n] = proven32(data, p)
                p += 4 + proven32(data, p)
            n += 1
        b += 1
