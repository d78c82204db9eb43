import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import SEED, hash_begin, hash_bytes, hash_end, hash_feed
from amqpscope.dissector.kernels.kernel import call, kernel
from tests.dissector.runs import BOTH


@kernel
def digest(data: Array, cuts: Array, lanes: Array, waiting: Array) -> int:
    hash_begin(lanes, 1)
    at = 0
    for i in range(len(cuts)):
        hash_feed(lanes, waiting, 1, data, at, cuts[i] - at)
        at = cuts[i]
    hash_feed(lanes, waiting, 1, data, at, len(data) - at)
    lanes[1, 5] = hash_end(lanes, waiting, 1)
    lanes[1, 6] = hash_bytes(data, 0, len(data))
    return 0


@BOTH
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_equals_xxhash_however_it_is_fed(compiled: bool, data: bytes, cuts: list[int]) -> None:
    lanes = np.zeros((2, 8), np.uint64)
    waiting = np.zeros(64, np.uint8)
    at = np.array(sorted(min(c, len(data)) for c in cuts), np.int64)
    call(digest, compiled, np.frombuffer(data, np.uint8).copy(), at, lanes, waiting)
    assert lanes[1, 5:7].tolist() == [xxhash.xxh64(data, seed=SEED).intdigest()] * 2
