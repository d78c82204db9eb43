"""A kernel to be run, compiled and cached by tests, in their own process and in others."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from tests.dissector import lanes


@kernel
def pick(data: Array, rows: Array, i: int) -> int:
    """Read with an index and with a pair of them."""
    return data[i] * 1000 + rows[i, i + 1] + rows.shape[1]


@kernel
def cars(lane: Array) -> int:
    """Read a column that another module declares."""
    return lane[lanes.LANE.CARS]
