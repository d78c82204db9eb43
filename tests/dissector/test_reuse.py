"""Memory is used again when the last view of it is dead, whatever kind of view it is, and not before."""

from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from amqpscope.dissector.kernels.reuse import KEPT, Reuse


def address(array: np.ndarray) -> int:
    return array.ctypes.data


VIEWS = {
    "array": lambda array: array,
    "slice of a slice": lambda array: array[2:][1:5],
    "other type": lambda array: array[8:24].view(np.int64)[:1],
    "memoryview": lambda array: array.data,
    "Arrow": lambda array: pa.Array.from_buffers(pa.uint8(), 8, [None, pa.py_buffer(array[:8])]).slice(2),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_memory_is_used_again_when_no_view_is_left(kind: str) -> None:
    reuse = Reuse(1 << 12, np.uint8)
    first = reuse.take()
    place = address(first)
    view = VIEWS[kind](first)
    del first
    second = reuse.take()
    assert address(second) != place
    del view
    third = reuse.take()
    assert address(third) == place
    assert third.flags.writeable
    assert third.flags.c_contiguous


def test_matrices_keep_their_shape_and_type() -> None:
    reuse = Reuse((3, 5), np.int64)
    place = address(reuse.take())
    again = reuse.take()
    assert (again.shape, again.dtype, address(again)) == ((3, 5), np.int64, place)


def test_the_last_view_may_die_in_another_thread() -> None:
    reuse = Reuse(1 << 12, np.uint8)
    views = [reuse.take()[:8] for _ in range(3)]
    places = {address(view) for view in views}
    thread = Thread(target=views.clear)
    thread.start()
    thread.join()
    assert {address(array) for array in [reuse.take() for _ in range(3)]} == places


def test_no_more_is_kept_than_a_few() -> None:
    reuse = Reuse(1 << 12, np.uint8)
    arrays = [reuse.take() for _ in range(KEPT + 3)]
    assert len({address(array) for array in arrays}) == KEPT + 3
    arrays.clear()
    assert len(reuse) == KEPT


def test_views_outlive_who_made_them() -> None:
    reuse = Reuse(8, np.uint8)
    view = reuse.take()[2:]
    del reuse
    view[:] = 7
    assert view.tolist() == [7] * 6
