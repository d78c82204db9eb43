"""Who was made to wait: blocked connections, channel.flow; and connections with nothing to say: heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import aio_pika
import pamqp.heartbeat
from pamqp import commands

from tests.captures.record import scripted
from tests.captures.record.peer import Peer
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_basics import pika_connection
from tests.captures.record.theme_contents import aio_connection

HEARTBEAT = pamqp.heartbeat.Heartbeat().marshal()


@scenario(
    "connection.blocked twice (memory watermark lowered): one producer is told, one is not capable, a consumer goes on"
)
def blocked(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="blocked"))
    with stage.sniff():
        told = stage.login("told")
        mute = stage.login("not capable of being told", capable=False)
        consumer = stage.login("consumer")
        consumer.call(1, commands.Basic.Consume(queue="blocked", consumer_tag="c", no_ack=True))
        for peer in (told, mute):
            peer.call(1, commands.Confirm.Select())

        def publish(peer: Peer, text: str) -> None:
            peer.publish(1, "", "blocked", text.encode())
            peer.flush()

        publish(told, "before")
        told.wait(1, "basic.ack")
        for turn in (1, 2):
            stage.broker.control("set_vm_memory_high_watermark", "0.0000001")
            publish(told, f"held {turn}")
            told.wait(0, "connection.blocked")
            publish(told, f"held as well {turn}")
            publish(mute, f"held in silence {turn}")
            time.sleep(0.3)
            stage.broker.control("set_vm_memory_high_watermark", "0.4")
            told.wait(0, "connection.unblocked")
            for peer in (told, mute):
                peer.until(lambda book=peer.book: all(row["outcome"] == "ack" for row in book.confirms))  # type: ignore[misc]
        consumer.until(lambda: len(consumer.book.settlements) == 7)
        for peer in (told, mute, consumer):
            peer.logout()
    stage.keep("flow_control", "confirms")
    stage.golden["counts"] = {"connections": 3, "connection.blocked": 2, "connection.unblocked": 2, "basic.publish": 7}


@scenario("scripted server: channel.flow stops one of two channels twice, the first stop said twice over")
def channel_flow(stage: Stage) -> None:
    with scripted.listener() as server, stage.sniff():
        client, far = scripted.pair(stage, server, "producer")
        scripted.shake(client, far, channels=(1, 2))
        for number, active in ((1, False), (1, False), (1, True), (2, False), (2, True), (1, False)):
            far.send(number, commands.Channel.Flow(active))
            client.wait(number, "channel.flow")
            client.send(number, commands.Channel.FlowOk(active))
            far.drain(0.1)
            publishing = 2 if not active and number == 1 else 1
            client.publish(publishing, "", "flow", b"goes on")
            client.flush()
            far.drain(0.1)
        scripted.hang_up(client, far)
    assert [(row["channel"], row["end_ns"] is None) for row in client.book.flow_control] == [
        (1, False),
        (2, False),
        (1, True),
    ]
    stage.keep("flow_control", "messages")
    stage.golden["counts"] = {"channel.flow": 6, "channel.flow-ok": 6, "basic.publish": 6}


@scenario("channel.flow sent by the client: the broker answers active=true and closes the connection on false (540)")
def channel_flow_by_client(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("client")
        peer.call(1, commands.Channel.Flow(True))
        peer.send(1, commands.Channel.Flow(False))
        close = peer.wait(0, "connection.close")
        assert close.reply_code == 540, close.reply_text
        peer.book.failed(1, "channel.flow", 540)
        peer.send(0, commands.Connection.CloseOk())
        peer.socket.close()
    stage.keep("rpcs")
    stage.golden["counts"] = {"channel.flow": 2, "channel.flow-ok": 1, "connection.close": 1}


@scenario(
    "channel.flow that the broker does not do (540), behind which the client closed at once: one channel, two, work"
)
def flow_and_close(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="flow"))
    refusals = 0
    with stage.sniff():
        for client, channels, publishes in (("one", (1,), 0), ("two", (1, 2), 0), ("working", (1,), 2)):
            peer = stage.login(client, channels=channels)
            for number in channels:
                peer.queue(number, commands.Channel.Flow(False))
            for number in range(publishes):
                peer.publish(1, "", "flow", b"goes on %d" % number)
            peer.send(0, commands.Connection.Close(200, "bye", 0, 0))
            assert peer.wait(0, "connection.close").reply_code == 540
            refusals += 1
            peer.send(0, commands.Connection.CloseOk())
            with contextlib.suppress(ConnectionError):
                peer.drain(1)
            peer.socket.close()
    stage.golden["counts"] = {
        "connections": 3,
        "channel.flow": 4,
        "channel.flow-ok": 0,
        "connection.close": 3 + refusals,
    }


@scenario("memory runs low, and two of three producers (pika, aio-pika) lack the capability connection.blocked")
def blocked_untold(stage: Stage) -> None:
    stage.backstage.call(1, commands.Queue.Declare(queue="untold"))
    few = {"publisher_confirms": True, "basic.nack": True, "connection.blocked": False}
    with stage.sniff():
        told = stage.login("told")
        told.call(1, commands.Confirm.Select())
        properties = {"connection_name": "pika", "capabilities": few}
        plain, _ = pika_connection(stage, "pika", client_properties=properties)
        channel = plain.channel()
        channel.confirm_delivery()
        asyncio.run(_untold(stage, told, channel, few))
        plain.close()
        told.logout()
    stage.golden["counts"] = {"connections": 3, "connection.blocked": 1, "connection.unblocked": 1, "basic.publish": 24}


async def _untold(stage: Stage, told: Peer, channel: Any, few: dict[str, bool]) -> None:
    """Publish with all three, before memory runs low and then; the last ones wait for 1.5 s."""
    modern, _ = await aio_connection(
        stage, "aio-pika", client_properties={"connection_name": "aio-pika", "capabilities": few}
    )
    outgoing = await modern.channel(publisher_confirms=True)
    loop = asyncio.get_running_loop()

    async def round_of(number: int) -> None:
        for part in range(4):
            told.publish(1, "", "untold", b"told %d.%d" % (number, part))
            told.flush()
            message = aio_pika.Message(b"modern %d.%d" % (number, part))
            waits = outgoing.default_exchange.publish(message, "untold")
            blocking = loop.run_in_executor(None, channel.basic_publish, "", "untold", b"plain %d.%d" % (number, part))
            await asyncio.gather(waits, blocking)

    await round_of(1)
    await loop.run_in_executor(None, stage.broker.control, "set_vm_memory_high_watermark", "0.0000001")
    relief = loop.run_in_executor(None, _relieve, stage)
    await round_of(2)
    await relief
    await loop.run_in_executor(None, told.wait, 0, "connection.unblocked")
    await modern.close()


def _relieve(stage: Stage) -> None:
    time.sleep(1.5)
    stage.broker.control("set_vm_memory_high_watermark", "0.4")


@scenario("heartbeat=1: a client that keeps it for four seconds, and one that stays silent and is thrown out")
def heartbeats(stage: Stage) -> None:
    with stage.sniff():
        keeping = stage.login("keeps", heartbeat=1)
        silent = stage.login("silent", heartbeat=1)
        sent = 0
        end = time.monotonic() + 4
        while time.monotonic() < end:
            keeping.socket.sendall(HEARTBEAT)
            sent += 1
            keeping.drain(0.5)
        with contextlib.suppress(ConnectionError):
            silent.drain(5)
            raise AssertionError("the broker did not mind the silence")
        silent.socket.close()
        keeping.logout()
    assert keeping.heartbeats >= 4
    stage.golden["heartbeats"] = [
        {"client": client, "from_client": from_client, "negotiated_s": 1, "frames": frames}
        for client, from_client, frames in (
            ("keeps", True, sent), ("keeps", False, keeping.heartbeats),
            ("silent", True, 0), ("silent", False, silent.heartbeats),
        )
    ]  # fmt: skip
    stage.golden["counts"] = {"connections": 2, "heartbeat frames": sent + keeping.heartbeats + silent.heartbeats}


@scenario("connection.update-secret on a busy connection; the new secret must be in no table")
def update_secret(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("client")
        peer.call(0, commands.Connection.UpdateSecret("fresh-s3cret-token", "it was time"))
        peer.call(1, commands.Queue.Declare(queue="secret", exclusive=True))
        peer.logout()
    stage.keep("rpcs")
    stage.golden["secrets"] = ["fresh-s3cret-token", "guest\x00guest", "\x00guest"]
    stage.golden["counts"] = {"connection.update-secret": 1, "connection.update-secret-ok": 1}
