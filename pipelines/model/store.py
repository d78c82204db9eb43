"""What walks remember: arrays that grow and spill to disk, and state as versioned bytes."""

from __future__ import annotations

import json
import math
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels import state as states

SPILL = 32 << 20
"""Bytes of one array, or of the outstanding rows of one kind, beyond which they lie in a mapped file: some twenty of
these are in use at the same time at most, and a task should stay below 1 GB."""
STEP = 16 << 20
"""Bytes of a mapped file that are processed at a time."""
MAGIC = b"amqpscope state 1\n"
_LET_GO = getattr(mmap, "MADV_DONTNEED", None)
"""Where the system has it: pages of a shared mapping leave this process, not the file's cache."""


class StateError(states.StateError, ValueError):
    """The state of something else, or of another release; one line."""


def grown(array: Any, rows: int, fill: int = 0) -> Any:
    """Return the array with at least this many rows (at least doubled), in memory or, beyond SPILL, in a file.

    Args:
        array: int64 of one or two dimensions.
        rows: least number of rows of the result.
        fill: value of new rows.
    """
    have = len(array)
    if rows <= have:
        return array
    shape = (max(rows, 2 * have), *array.shape[1:])
    size = math.prod(shape) * array.itemsize
    made = np.empty(shape, array.dtype) if size <= SPILL else _mapped(shape, array.dtype)
    for first, end in steps(made):
        old = array[first:end]
        made[first : first + len(old)] = old
        made[first + len(old) : end] = fill
        release_arrays((array, made))
    return made


def steps(array: Any) -> Iterator[tuple[int, int]]:
    """Yield row ranges of an array that are worth STEP bytes: the first row, and the one after the last."""
    size = max(STEP // (array[:1].nbytes or 1), 1)
    return ((first, min(first + size, len(array))) for first in range(0, len(array), size))


def _mapped(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array in an unlinked temporary file, which is removed with the array."""
    with tempfile.TemporaryFile(prefix="amqpscope-") as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def release(memory: mmap.mmap | None, first: int = 0, end: int | None = None) -> None:
    """Release bytes of a mapped file from the memory of this process, until they are used again.

    Args:
        memory: the mapping; None: nothing is mapped.
        first: byte to begin with, about.
        end: byte before which to end; None for all.
    """
    if memory is not None and _LET_GO is not None:
        begin = first // mmap.PAGESIZE * mmap.PAGESIZE
        memory.madvise(_LET_GO, begin, (len(memory) if end is None else end) - begin)


def release_arrays(arrays: Iterable[Any]) -> None:
    """Release the arrays that `grown` put into files from memory, until they are used again."""
    for array in arrays:
        if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap):
            release(array.base)


def pack(name: str, version: int, parts: Mapping[str, Any]) -> bytes:
    """Return state as bytes: numpy arrays, Arrow tables, tuples and dicts of these, bytes, and what JSON can hold.

    Args:
        name: whose state it is.
        version: increased when its parts change.
        parts: by name.
    """
    kinds: dict[str, Any] = {}
    bodies = []
    for key, value in parts.items():
        if isinstance(value, np.ndarray):
            body = np.ascontiguousarray(value).tobytes()
            kinds[key] = {"array": str(value.dtype), "shape": value.shape, "size": len(body)}
        elif isinstance(value, pa.Table):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write_table(value)
            body = sink.getvalue()
            kinds[key] = {"table": 1, "size": len(body)}
        elif isinstance(value, bytes):
            body = value
            kinds[key] = {"bytes": 1, "size": len(body)}
        elif _is_group(value):
            inner = dict(enumerate(value)) if isinstance(value, tuple) else value
            body = pack(name, version, {str(each): part for each, part in inner.items()})
            kinds[key] = {"tuple" if isinstance(value, tuple) else "parts": 1, "size": len(body)}
        else:
            kinds[key], body = {"value": value, "size": 0}, b""
        bodies.append(body)
    head = json.dumps({"name": name, "version": version, "parts": kinds}).encode()
    return b"".join((MAGIC, len(head).to_bytes(8, "little"), head, *bodies))


def unpack(name: str, version: int, state: bytes) -> dict[str, Any]:
    """Return the parts of a state.

    Raises:
        StateError: it is the state of something else, or of another version.
    """
    if not state.startswith(MAGIC):
        raise StateError(f"not a state of {name}")
    at = len(MAGIC) + 8
    size = int.from_bytes(state[len(MAGIC) : at], "little")
    head = json.loads(state[at : at + size])
    if (head["name"], head["version"]) != (name, version):
        text = f"state of {head['name']} version {head['version']}, not of {name} version {version}"
        raise StateError(f"{text}; another release wrote it: begin anew")
    at += size
    parts: dict[str, Any] = {}
    for key, kind in head["parts"].items():
        body = state[at : at + kind["size"]]
        at += kind["size"]
        if "array" in kind:
            parts[key] = np.frombuffer(body, kind["array"]).reshape(kind["shape"]).copy()
        elif "table" in kind:
            parts[key] = pa.ipc.open_stream(body).read_all()
        elif "tuple" in kind:
            parts[key] = tuple(unpack(name, version, body).values())
        elif "parts" in kind:
            parts[key] = unpack(name, version, body)
        else:
            parts[key] = body if "bytes" in kind else kind["value"]
    return parts


def _is_group(value: Any) -> bool:
    """Return whether a part is a tuple or a dict in which arrays or tables are."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return any(isinstance(each, np.ndarray | pa.Table) for each in inner)
