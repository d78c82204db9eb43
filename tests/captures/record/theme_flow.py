"""Who was made to wait: blocked connections, channel.flow; and connections with nothing to say: heartbeats."""

from __future__ import annotations

import contextlib
import time

import pamqp.heartbeat
from pamqp import commands

from tests.captures.record import scripted
from tests.captures.record.peer import Peer
from tests.captures.record.scenario import Stage, scenario

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
