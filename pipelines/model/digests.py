"""Digests: columns as 64-bit hashes, the same in every batch, process and on every machine.

Strings and binary values hash as with XXH64. The hash of an integer is the first number of SplitMix64 (Steele, Lea and
Flood, 2014) with it as seed. Null is 0, and no value is. This is not proof against somebody who looks for two values
with the same hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.hashing import hash_bytes
from amqpscope.dissector.kernels.kernel import call, kernel, worthwhile

Column: TypeAlias = Any
"""An Arrow array (also chunked), int64 digests (numpy), or None: a column that is null in all rows."""

GOLDEN = 0x9E3779B97F4A7C15
NOT_ZERO = 1
"""Stands for a hash that would be 0."""
REWRITTEN = ("cluster_id",)
"""Basic properties that a broker rewrites: RabbitMQ puts an empty one into what it passes on."""

DIRECT_REPLY = "amq.rabbitmq.reply-to"
"""What clients give as `reply_to` for an answer without a queue; RabbitMQ adds a dot and a name of its own."""

_BYTES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
)  # fmt: skip


def hashed(array: pa.Array | pa.ChunkedArray, compiled: bool | None = None) -> Ints:
    """Hash every value.

    Args:
        array: strings, binary values, integers, booleans, times, or a dictionary of these.
        compiled: whether to run compiled; None leaves it to the size of the values.

    Returns:
        int64, as long as the array; 0 for null and for nothing else.

    Raises:
        TypeError: values of this type are not hashed.
    """
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    made = [_hashed(chunk, compiled) for chunk in chunks]
    return made[0] if len(made) == 1 else np.concatenate([np.zeros(0, np.int64), *made])


def combined(columns: Sequence[Column], compiled: bool | None = None) -> Ints:
    """Hash rows of several columns; a value counts for the place of its column, and null counts nothing.

    Args:
        columns: of the same length, in an order that is part of the hash; at least one is not None.
        compiled: see `hashed`.

    Returns:
        int64 per row; 0 where all columns are null, and nowhere else.
    """
    (count,) = {len(column) for column in columns if column is not None}
    result = np.zeros(count, np.uint64)
    for place, column in enumerate(columns, 1):
        if column is None or not count or _is_null(column):
            continue
        mixed = _mixed_column(column, np.uint64(place * GOLDEN & 0xFFFFFFFFFFFFFFFF), compiled)
        result += mixed
        result[(result == 0) & (mixed != 0)] = NOT_ZERO
    return result.view(np.int64)


def content(messages: pa.Table, compiled: bool | None = None) -> Ints:
    """Hash what stays the same when a message is passed on: exchange, routing key, properties and body.

    Args:
        messages: rows of `messages`; columns that it lacks count as null. `content_columns` has those that are used.
        compiled: see `hashed`.

    Returns:
        int64 per message; it means nothing for messages that do not `has_body`.
    """
    given = {name: messages[name] for name in content_columns() if name in messages.column_names}
    if "reply_to" in given:
        given["reply_to"] = _as_published(given["reply_to"])
    columns = [given.get(name) for name in content_columns()]
    if all(column is None for column in columns):
        return np.zeros(len(messages), np.int64)
    return combined(columns, compiled)


@cache
def content_columns() -> tuple[str, ...]:
    """Return the columns of `messages` that `content` takes, in its order."""
    properties = [name for name in spec.load().property_columns() if name not in REWRITTEN]
    return ("exchange", "routing_key", "body_size", "body_hash", *properties)


def has_body(messages: pa.Table) -> Any:
    """Return which messages (bool, numpy) have a body that is not empty and whose hash is known."""
    sized = pc.fill_null(pc.greater(messages["body_size"], 0), False)
    return pc.and_(sized, pc.is_valid(messages["body_hash"])).to_numpy()


def _as_published(reply_to: Column) -> Column:
    """Return addresses for answers without what RabbitMQ adds to those of direct replies."""
    text = reply_to.cast(pa.string())
    renamed = pc.starts_with(text, DIRECT_REPLY + ".")
    return pc.if_else(renamed, DIRECT_REPLY, text) if pc.any(renamed).as_py() else reply_to


def _is_null(column: Column) -> bool:
    return not isinstance(column, np.ndarray) and column.null_count == len(column)


def _hashed(array: pa.Array, compiled: bool | None) -> Ints:
    kind = array.type
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64)
    if pa.types.is_dictionary(kind):
        places = array.indices.cast(pa.int64()).fill_null(-1).to_numpy()
        by_place: Ints = np.append(_hashed(array.dictionary, compiled), 0)[places]
        return by_place
    if any(is_such(kind) for is_such in _BYTES):
        result = _hashed_bytes(array if kind in (pa.string(), pa.binary()) else array.cast(pa.large_binary()), compiled)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        result = _hashed_ints(array)
    else:
        raise TypeError(f"values of type {kind} have no hash")
    result[result == 0] = NOT_ZERO
    if array.null_count:
        result[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return result


def _mixed_column(column: Column, salt: Any, compiled: bool | None) -> Any:
    """Mix hashes of a column with what stands for its place, lest a value of another cancel one of this out.

    Returns:
        uint64 per value; 0 for null and for nothing else.
    """
    if isinstance(column, pa.ChunkedArray):
        parts = [_mixed_column(chunk, salt, compiled) for chunk in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint64), *parts])
    if not isinstance(column, np.ndarray) and pa.types.is_dictionary(column.type):
        places = column.indices.fill_null(len(column.dictionary)).to_numpy()
        return np.append(_mixed_column(column.dictionary, salt, compiled), np.uint64(0))[places]
    digests = column if isinstance(column, np.ndarray) else _hashed(column, compiled)
    mixed = _mixed(digests.view(np.uint64) + salt)
    mixed[mixed == 0] = NOT_ZERO
    mixed[digests == 0] = 0
    return mixed


def _hashed_ints(array: pa.Array) -> Ints:
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if array.type.bit_width == pa.int32().bit_width else pa.int64())
    values = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    result: Ints = _mixed(values.view(np.uint64) + np.uint64(GOLDEN)).view(np.int64)
    return result


def _mixed(values: Any) -> Any:
    """Mix the bits of uint64 values (one to one)."""
    values = values ^ values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _hashed_bytes(array: pa.Array, compiled: bool | None) -> Ints:
    _, offsets, data = array.buffers()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    ends = np.frombuffer(offsets, width, len(array) + 1, array.offset * np.dtype(width).itemsize).astype(np.int64)
    bytes_ = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    bytes_.flags.writeable = False  # one kernel for all buffers
    result = np.empty(len(array), np.uint64)
    if compiled is None:
        compiled = worthwhile(int(ends[-1] - ends[0]))
    call(hash_values, compiled, ends, bytes_, result)
    return result.view(np.int64)


@kernel
def hash_values(offsets: Array, data: Array, result: Array) -> None:
    """Hash each of the values, which lie one after the other.

    Args:
        offsets: int64, one more than values.
        data: uint8.
        result: uint64 per value.
    """
    for i in range(len(result)):
        start = offsets[i]
        end = offsets[i + 1]
        result[i] = 0
        if 0 <= start <= end <= len(data):
            result[i] = hash_bytes(data, start, end - start)
