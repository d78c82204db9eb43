"""Round trips of connections whose handshake was not captured: what acknowledgements show, and what they may not."""

import pyarrow as pa
import pytest

from amqpscope.pipelines.activity import endpoints

MS = 1_000_000


@pytest.mark.parametrize(
    ("client", "server", "found"),
    [
        ((2, 1), (3, 3), (4, 1)),  # segments without bytes: at most so long, and not held back
        (
            (96, None),
            (2, None),
            (None, None),
        ),  # with what it publishes next: it may think for so long, where a system waits
        ((72, 73), (1, 1), (73, 72)),
        ((20, None), (1, 1), (None, None)),  # it may think for so long, and be near
        ((41, 41), (1, 1), (None, None)),  # held back
        ((200, 200), (1, 1), (None, None)),  # as Windows does
        ((20, None), (30, None), (None, None)),
        ((None, None), (1, 1), (None, None)),  # the server sent nothing
        ((1, 1), (20, None), (None, None)),
        ((5, None), (75, 75), (80, 5)),  # near the client
        ((100, 100), (1, 1), (None, None)),  # as macOS does
        ((96, 200), (2, None), (None, None)),
    ],
)
def test_without_a_handshake(
    client: tuple[int | None, ...], server: tuple[int | None, ...], found: tuple[int | None, ...]
) -> None:
    values = [None if ms is None else ms * MS for ms in (*client, *server)]
    made = {name: pa.array([ns], pa.int64()) for name, ns in zip(endpoints.ACKNOWLEDGED, values, strict=True)}
    none = {name: pa.array([None], pa.int64()) for name in ("rtt_ns", "client_rtt_ns")}
    rtt, part = endpoints._round_trips(pa.table(made | none))
    assert (rtt.to_pylist(), part.to_pylist()) == tuple([ms and ms * MS] for ms in found)
    timed = {"rtt_ns": pa.array([7]), "client_rtt_ns": pa.array([None], pa.int64())}
    rtt, part = endpoints._round_trips(pa.table(made | timed))
    assert (rtt.to_pylist(), part.to_pylist()) == ([7], [None])
