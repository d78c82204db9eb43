"""Handshakes that fail, one cause each: ports, logins, tuning, opening, patience; and connections thrown out later."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.captures.record import scripted, wire
from tests.captures.record.broker import PORT
from tests.captures.record.peer import PROTOCOL_HEADER, Peer
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_failures import _refused

OUTSIDE = "10.77.0.1"  # an address that is no loopback one
BEHIND_PROXY = "10.77.0.2"
TLS_PORT = 5671
RAW_STREAM_HELLO = struct.pack(">IHHII", 12, 17, 1, 1, 0)  # peer-properties without any, as stream clients begin


class Verdicts:
    """What each client did and what must be reported of it, written down as it is done."""

    def __init__(self, stage: Stage) -> None:
        self.rows: list[dict[str, Any]] = []
        stage.golden["handshakes"] = self.rows

    def add(self, client: str, stage: str, cause: str, **more: Any) -> None:
        """One client's."""
        self.rows.append({"client": client, "stage": stage, "cause": cause, **more})


def _listen(stage: Stage, address: str) -> None:
    """Has the broker listen on an address that this namespace gets now."""
    subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)
    stage.broker.control("eval", f'rabbit_networking:start_tcp_listener({{"{address}", {PORT}}}, 1).')


def _listen_tls(stage: Stage) -> None:
    folder = Path(tempfile.mkdtemp(prefix="certificate-", dir=stage.broker.folder))
    subject = ["-subj", "/CN=localhost", "-days", "30", "-nodes", "-newkey", "rsa:2048"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/certificate.pem"]
    subprocess.run(["openssl", "req", "-x509", *subject, *files], check=True, capture_output=True)
    options = f'[{{certfile, "{folder}/certificate.pem"}}, {{keyfile, "{folder}/key.pem"}}]'
    stage.broker.control("eval", f'rabbit_networking:start_ssl_listener({{"127.0.0.1", {TLS_PORT}}}, {options}, 1).')


def _setting(stage: Stage, name: str, value: str) -> None:
    stage.broker.control("eval", f"application:set_env(rabbit, {name}, {value}).")


def _read_to_end(peer: Peer, seconds: float = 15) -> bytes:
    """What the other side sends until it closes; fails when it does not in time."""
    answer = b""
    peer.socket.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        while data := peer.socket.recv(1000):
            answer += data
    return answer


def _upto_tune(peer: Peer) -> None:
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.wait(0, "connection.start")
    peer.send(0, commands.Connection.StartOk({"product": "scripted peer"}, "PLAIN", "\0guest\0guest", "en_US"))
    peer.wait(0, "connection.tune")


@scenario("logins refused: unknown mechanism, malformed response, guest from outside, a challenge answered wrong")
def refused_logins(stage: Stage) -> None:
    _listen(stage, OUTSIDE)
    verdicts = Verdicts(stage)
    with stage.sniff():
        for client, mechanism, response, cause in (
            ("unknown mechanism", "GSSAPI", "token", "no-common-mechanism"),
            ("malformed response", "PLAIN", "no separators", "login-malformed"),
            ("wrong answer to a challenge", "RABBIT-CR-DEMO", "guest", "auth-failed"),
        ):
            peer = stage.connect(client)
            peer.socket.sendall(PROTOCOL_HEADER)
            peer.wait(0, "connection.start")
            properties: Any = {"product": "scripted peer", "capabilities": {"authentication_failure_close": True}}
            peer.send(0, commands.Connection.StartOk(properties, mechanism, response, "en_US"))
            if mechanism == "RABBIT-CR-DEMO":
                peer.wait(0, "connection.secure")
                peer.send(0, commands.Connection.SecureOk("My password is not this"))
            code = None
            with contextlib.suppress(ConnectionError):
                code = peer.wait(0, "connection.close").reply_code
                peer.send(0, commands.Connection.CloseOk())
            peer.socket.close()
            stage_name = "secure" if mechanism == "RABBIT-CR-DEMO" else "start"
            verdicts.add(client, stage_name, cause, reply_code=code)
        code = _refused(stage.connect("guest from outside", OUTSIDE))
        verdicts.add("guest from outside", "start", "loopback-only", reply_code=code)
    stage.golden["secrets"] = ["My password is not this", "no separators"]


@scenario(
    "tunings: channel-max and frame-max above the offer, frame-max below 4096; a heartbeat other than offered is fine"
)
def refused_tunings(stage: Stage) -> None:
    verdicts = Verdicts(stage)
    with stage.sniff():
        for client, channel_max, frame_max, cause in (
            ("channel-max 3000", 3000, 131072, "channel-max-too-high"),
            ("frame-max 200000", 2047, 200_000, "frame-max-too-high"),
            ("frame-max 1000", 2047, 1000, "frame-max-too-low"),
        ):
            # the broker waits three seconds, and resets without a word; the client's open has been sent by then
            code = _refused(stage.connect(client, frame_max=frame_max), channel_max=channel_max)
            assert code is None
            verdicts.add(client, "open", cause)
        peer = stage.login("heartbeat 5", heartbeat=5)
        peer.logout()
        verdicts.add("heartbeat 5", "ready", "ok", ending="closed", notes=["heartbeat-other"])


@scenario("opens refused: no access to the vhost, limits of the vhost and the user, a vhost that is down")
def refused_opens(stage: Stage) -> None:
    control = stage.broker.control
    verdicts = Verdicts(stage)
    for name in ("private", "full", "down"):
        control("add_vhost", name)
    for name in ("full", "down"):
        control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    control("set_vhost_limits", "-p", "full", '{"max-connections": 0}')
    control("add_user", "limited", "limited")
    control("set_permissions", "limited", ".*", ".*", ".*")
    control("set_user_limits", "limited", '{"max-connections": 0}')
    control("eval", 'rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"down">>).')
    with stage.sniff():
        for client, cause, options in (
            ("no access", "vhost-refused", {"vhost": "private"}),
            ("vhost's limit", "connection-limit", {"vhost": "full"}),
            ("user's limit", "connection-limit", {"user": "limited", "password": "limited"}),
            ("vhost down", "vhost-down", {"vhost": "down"}),
        ):
            code = _refused(stage.connect(client), **options)
            verdicts.add(client, "open", cause, reply_code=code)
    for name in ("private", "full", "down"):
        control("delete_vhost", name)


@scenario("patience: the broker's time-out (10 s) at four points of the handshake, and a client that gives up first")
def handshake_timeouts(stage: Stage) -> None:
    verdicts = Verdicts(stage)
    with stage.sniff():
        silent = stage.connect("says nothing")
        half = stage.connect("half a header")
        half.socket.sendall(PROTOCOL_HEADER[:4])
        started = stage.connect("silent after start")
        started.socket.sendall(PROTOCOL_HEADER)
        started.wait(0, "connection.start")
        tuned = stage.connect("silent after tune")
        _upto_tune(tuned)
        for peer in (silent, half, started, tuned):
            _read_to_end(peer)
            peer.socket.close()
        verdicts.add("says nothing", "tcp", "handshake-timeout", slow="client")
        verdicts.add("half a header", "tcp", "handshake-timeout", slow="client")
        verdicts.add("silent after start", "start", "handshake-timeout", slow="client")
        verdicts.add("silent after tune", "tune", "handshake-timeout", slow="client")
        pause = threading.Thread(target=stage.broker.pause, args=(4,))
        pause.start()
        time.sleep(0.3)
        peer = stage.connect("gives up")
        peer.socket.sendall(PROTOCOL_HEADER)
        time.sleep(3)
        peer.socket.close()
        pause.join()
        verdicts.add("gives up", "header", "client-timeout", slow="server")


@scenario("wrong ports: plain AMQP to TLS, a PROXY header unexpected and expected, streams, other versions, garbage")
def wrong_ports(stage: Stage) -> None:
    verdicts = Verdicts(stage)
    _listen_tls(stage)
    _listen(stage, BEHIND_PROXY)
    stage.broker.control("add_user", "proxied", "proxied")  # guest may not come in by that address
    stage.broker.control("set_permissions", "proxied", ".*", ".*", ".*")
    with stage.sniff(ports=(PORT, TLS_PORT)):
        for client, data, cause, reached in (
            ("PROXY header", b"PROXY TCP4 10.1.2.3 10.4.5.6 40000 5672\r\n" + PROTOCOL_HEADER,
             "proxy-header-unexpected", "tcp"),
            ("stream protocol", RAW_STREAM_HELLO, "stream-on-amqp-port", "header"),
            ("AMQP 0-10", b"AMQP\x01\x01\x00\x0a", "amqp-0-10-refused", "header"),
            ("a version nobody has", b"AMQP\x00\x00\x09\x02", "version-refused", "header"),
            ("MQTT", bytes.fromhex("101000044d5154540402003c000474657374"), "wrong-protocol", "tcp"),
            ("garbage", b"hello, is there anybody?", "wrong-protocol", "tcp"),
        ):  # fmt: skip
            peer = stage.connect(client)
            peer.socket.sendall(data)
            answer = _read_to_end(peer)
            assert answer == PROTOCOL_HEADER, (client, answer)
            peer.socket.close()
            verdicts.add(client, reached, cause)
        peer = stage.connect("plain on TLS", port=TLS_PORT)
        peer.socket.sendall(PROTOCOL_HEADER)
        answer = _read_to_end(peer)
        peer.socket.close()
        verdicts.add("plain on TLS", "header", "plain-on-tls-port", answer=answer[:7].hex())
        _setting(stage, "proxy_protocol", "true")
        peer = stage.connect("no PROXY header", BEHIND_PROXY)
        peer.socket.sendall(PROTOCOL_HEADER)
        answer = _read_to_end(peer)
        assert not answer, answer
        peer.socket.close()
        verdicts.add("no PROXY header", "header", "closed-after-header")
        peer = stage.connect("expected PROXY header", BEHIND_PROXY)
        peer.socket.sendall(b"PROXY TCP4 10.1.2.3 10.77.0.2 40000 5672\r\n")
        peer.login(heartbeat=60, user="proxied", password="proxied")
        peer.logout()
        verdicts.add("expected PROXY header", "ready", "ok", ending="closed", notes=["behind-proxy"])
        _setting(stage, "proxy_protocol", "false")


@scenario(
    "scripted servers: no answer to SYN, closed or reset at once, at the header, in the middle; a server gone silent"
)
def cut_handshakes(stage: Stage) -> None:
    verdicts = Verdicts(stage)
    with socket.socket() as full:
        # a listener whose queue is full answers no SYN
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.3", PORT))
        full.listen(0)
        fillers = [socket.socket() for _ in range(2)]
        for filler in fillers:
            filler.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                filler.connect(("127.0.0.3", PORT))
        with scripted.listener() as server, stage.sniff():
            with socket.socket() as unheard:
                unheard.bind(("127.0.0.4", 0))
                stage.address("no answer", unheard.getsockname(), ("127.0.0.3", PORT))
                unheard.settimeout(3.5)
                with contextlib.suppress(TimeoutError):
                    unheard.connect(("127.0.0.3", PORT))
            verdicts.add("no answer", "tcp", "no-answer")

            client, far = scripted.pair(stage, server, "closed on accept")
            far.socket.close()
            _read_to_end(client)
            client.socket.close()
            verdicts.add("closed on accept", "tcp", "closed-on-accept")

            client, far = scripted.pair(stage, server, "reset at header")
            client.socket.sendall(PROTOCOL_HEADER)
            far.socket.recv(100)
            far.abort()
            _read_to_end(client)
            client.socket.close()
            verdicts.add("reset at header", "header", "closed-after-header")

            client, far = scripted.pair(stage, server, "client resets after start")
            client.socket.sendall(PROTOCOL_HEADER)
            far.socket.recv(100)
            far.send(0, commands.Connection.Start(0, 9, {"product": "scripted server"}, "EXTERNAL", "en_US"))
            client.wait(0, "connection.start")
            client.abort()
            time.sleep(0.1)
            far.socket.close()
            verdicts.add("client resets after start", "start", "client-left-at-start")

            client, far = scripted.pair(stage, server, "closed in the middle")
            client.socket.sendall(PROTOCOL_HEADER)
            far.socket.recv(100)
            far.send(0, commands.Connection.Start(0, 9, {"product": "scripted server"}, "PLAIN", "en_US"))
            client.wait(0, "connection.start")
            client.send(0, commands.Connection.StartOk({"product": "scripted peer"}, "PLAIN", "\0u\0p", "en_US"))
            far.socket.recv(1000)
            far.send(0, commands.Connection.Tune(2047, 131072, 60))
            client.wait(0, "connection.tune")
            client.send(0, commands.Connection.TuneOk(2047, 131072, 60), commands.Connection.Open("/"))
            far.socket.recv(1000)
            far.socket.close()
            _read_to_end(client)
            client.socket.close()
            verdicts.add("closed in the middle", "open", "server-gave-up")

            client, far = scripted.pair(stage, server, "everything in one go")
            login = commands.Connection.StartOk({"product": "scripted peer"}, "PLAIN", "\0guest\0guest", "en_US")
            rest = [commands.Connection.TuneOk(2047, 131072, 60), commands.Connection.Open("/")]
            data = b"".join(wire.method(0, command) for command in (login, *rest))
            client.socket.sendall(PROTOCOL_HEADER + data + wire.method(1, commands.Channel.Open()))
            far.socket.recv(1000)
            far.send(0, commands.Connection.Start(0, 9, {"product": "scripted server"}, "PLAIN", "en_US"))
            far.send(0, commands.Connection.Tune(2047, 131072, 60), commands.Connection.OpenOk())
            far.send(1, commands.Channel.OpenOk())
            client.drain(0.1)
            scripted.hang_up(client, far)
            verdicts.add("everything in one go", "ready", "ok", ending="closed")

            client, far = scripted.pair(stage, server, "waits in vain")
            client.socket.sendall(PROTOCOL_HEADER)
            far.socket.recv(100)
            time.sleep(6)
            verdicts.add("waits in vain", "header", "stalled", slow="server")
            late, _ = scripted.pair(stage, server, "shows how late it is")
            late.socket.close()
            verdicts.add("shows how late it is", "tcp", "probe")
        client.socket.close()
        far.socket.close()
        for filler in fillers:
            filler.close()


@scenario("thrown out: closed by the operator, by the broker's stop, and a broker that misses its heartbeats")
def thrown_out(stage: Stage) -> None:
    control = stage.broker.control
    verdicts = Verdicts(stage)
    with stage.sniff():
        peer = stage.login("closed by the operator", heartbeat=60)
        control("close_all_connections", "--vhost", "/", "maintenance at noon")
        code = peer.wait(0, "connection.close").reply_code
        peer.send(0, commands.Connection.CloseOk())
        peer.socket.close()
        verdicts.add("closed by the operator", "ready", "ok", ending="forced-close", reply_code=code)

        peer = stage.login("heartbeats of the broker missed", heartbeat=1)
        pause = threading.Thread(target=stage.broker.pause, args=(4.5,))
        pause.start()
        for _ in range(7):
            peer.socket.sendall(wire.frame(wire.HEARTBEAT, 0, b""))
            time.sleep(0.5)
        peer.socket.close()
        pause.join()
        verdicts.add("heartbeats of the broker missed", "ready", "ok", ending="heartbeat-missed-by-server")

        peer = stage.login("broker stops", heartbeat=60)
        control("stop_app")
        code = peer.wait(0, "connection.close").reply_code
        with contextlib.suppress(ConnectionError):
            peer.send(0, commands.Connection.CloseOk())
        peer.socket.close()
        verdicts.add("broker stops", "ready", "ok", ending="broker-shutdown", reply_code=code)
    control("start_app")
    control("await_startup")
