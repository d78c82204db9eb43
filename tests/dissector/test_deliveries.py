"""What `frames` says of acks and deliveries: what they settle, how late, and from which queue."""

import re
from pathlib import Path

import pytest
from pamqp import commands

from amqpscope.dissector.cli.program import main
from tests.dissector.builders import pcap
from tests.dissector.wire import CLIENT, SERVER, Tape, deliver, handshake, method, opening


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Packets a millisecond apart: four deliveries to two consumers, acked singly, together, and one never seen."""
    consume, ok = commands.Basic.Consume, commands.Basic.ConsumeOk
    turns = [
        *handshake(), *opening(1),
        (CLIENT, method(consume(queue="orders", consumer_tag=""))), (SERVER, method(ok(consumer_tag="amq.1"))),
        (CLIENT, method(consume(queue="other", consumer_tag="o"))), (SERVER, method(ok(consumer_tag="o"))),
        (SERVER, b"".join(deliver(1, consumer="amq.1"))), (SERVER, b"".join(deliver(2, consumer="o"))),
        (CLIENT, method(commands.Basic.Ack(delivery_tag=1))),
        (SERVER, b"".join(deliver(3, consumer="amq.1"))), (SERVER, b"".join(deliver(4, consumer="o"))),
        (CLIENT, method(commands.Basic.Ack(delivery_tag=4, multiple=True))),
        (CLIENT, method(commands.Basic.Ack(delivery_tag=9))),
    ]  # fmt: skip
    path = tmp_path / "tape.pcap"
    path.write_bytes(pcap(Tape().play(turns).packets))
    return path


def test_an_ack_says_what_it_settles_and_how_late(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", str(capture), "--method", "basic.ack"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    said = [re.search(r"\[(.*)\]", line) for line in lines]
    assert [each and each[1] for each in said] == [
        "settles a delivery 2 ms late", "settles 3 deliveries seen, the oldest 4 ms late", None,
    ]  # fmt: skip


def test_a_queue_finds_what_was_delivered_from_it(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for queue, tags in (("orders", ["1", "3"]), ("other", ["2", "4"]), ("none", [])):
        assert main(["frames", str(capture), "--queue", queue, "--method", "basic.deliver"]) == 0
        assert re.findall(r"delivery_tag=(\d+)", capsys.readouterr().out) == tags


def test_of_deliveries_that_may_need_no_ack_only_single_ones_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    consume = method(commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
    acks = [method(commands.Basic.Ack(delivery_tag=tag, multiple=tag > 1)) for tag in (1, 3)]
    turns = [*handshake(), *opening(1), (CLIENT, consume), *((SERVER, b"".join(deliver(tag))) for tag in (1, 2, 3))]
    path = tmp_path / "tape.pcap"
    path.write_bytes(pcap(Tape().play([*turns, *((CLIENT, ack) for ack in acks)]).packets))
    assert main(["frames", str(path), "--method", "basic.ack"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert ["settles" in line for line in lines] == [True, False]
