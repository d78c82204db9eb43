"""State as bytes: a dissector that hands it on, at whatever border, gives the rows of one that does not."""

from pathlib import Path

import pytest

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.kernels.state import StateError
from tests.dissector.moves import Relay, Split, by_connection
from tests.dissector.runs import FOLDER, SETS, dissect, tables

RECORDINGS = sorted([*FOLDER.glob("*.pcap"), *FOLDER.glob("*.pcapng"), *SETS])
LARGE = 1 << 17
"""Bytes of a recording from which on more packets are read at a time."""
COMPILED = ("stream_super.pcap", "tls_sessions.pcap", "lossy_link.pcap", "interleaved_channels.pcap")


def options_of(path: Path, bodies: str = "hash") -> Options:
    """With the key log that lies beside a recording."""
    keylog = path.with_suffix(".keylog")
    return Options(bodies=bodies, keylog=str(keylog) if keylog.exists() else None)


def relayed(path: Path, batch_bytes: int, options: Options, compiled: bool = False) -> Relay:
    """A pass over a recording in small batches."""
    return Relay(find([str(path)]), options, compiled=compiled, batch_bytes=batch_bytes)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_state_may_move_at_any_border(path: Path) -> None:
    large = path.stat().st_size > LARGE
    options = options_of(path)
    relay = relayed(path, 1 << 16 if large else 1500, options)
    found = by_connection(tables(relay, options))
    assert relay.borders > 1
    assert found == by_connection(dissect(path, options=options))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_rows_of_a_connection_depend_on_no_other(path: Path) -> None:
    options = options_of(path)
    split = Split([str(path)], options, count=3, batch_bytes=1 << 14)
    assert by_connection(tables(split, options)) == by_connection(dissect(path, options=options))


@pytest.mark.parametrize("name", ["body_sizes.pcap", "stream_chunks.pcap", "rotated"])
def test_bodies_that_go_on_move_along(name: str) -> None:
    options = options_of(FOLDER / name, bodies="full")
    found = by_connection(tables(relayed(FOLDER / name, 1, options), options))
    assert found == by_connection(dissect(FOLDER / name, options=options))


@pytest.mark.compiled
@pytest.mark.parametrize("name", COMPILED)
def test_state_may_move_compiled(name: str) -> None:
    path = FOLDER / name
    options = options_of(path)
    found = by_connection(tables(relayed(path, 1500, options, compiled=True), options))
    assert found == by_connection(dissect(path, options=options))


def test_state_of_other_options_is_refused() -> None:
    state = Dissector(compiled=False).take_out()
    with pytest.raises(StateError, match="options"):
        Dissector(Options(bodies="full"), compiled=False).put_back(state)


@pytest.mark.parametrize("damage", [lambda s: b"", lambda s: s[:-1], lambda s: s + b"x", lambda s: b"a" + s[2:]])
def test_damaged_state_is_refused(damage) -> None:  # type: ignore[no-untyped-def]
    dissector = Dissector(compiled=False)
    with pytest.raises(StateError) as caught:
        dissector.put_back(damage(dissector.take_out()))
    assert "\n" not in str(caught.value)
