"""TLS before the broker: versions, suites, resumption, key updates; and handshakes of TLS that fail."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
from pamqp import commands

from tests.captures.record import wire
from tests.captures.record.broker import PORT
from tests.captures.record.certificates import NAME, Authority, context
from tests.captures.record.peer import PROTOCOL_HEADER, Peer
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_basics import ten_publishes
from tests.captures.record.theme_deliveries import Ack, delivered
from tests.captures.record.theme_handshakes import Verdicts, _read_to_end

TLS_PORT = 5671
STRICT = "127.0.0.11"  # wants a client certificate
NEW = "127.0.0.12"  # TLS 1.3 only
NARROW = "127.0.0.13"  # one suite of TLS 1.2 only
EXPIRED = "127.0.0.14"
SUITES_12 = (
    ("gcm-128", "ECDHE-ECDSA-AES128-GCM-SHA256"), ("gcm-256", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("chacha", "ECDHE-ECDSA-CHACHA20-POLY1305"), ("cbc-sha", "ECDHE-ECDSA-AES128-SHA"),
    ("cbc-sha256", "ECDHE-ECDSA-AES128-SHA256"), ("cbc-sha384", "ECDHE-ECDSA-AES256-SHA384"),
    ("ccm", "ECDHE-ECDSA-AES128-CCM"),
)  # fmt: skip
SUITES_13 = (("aes-128", "aes_128_gcm"), ("aes-256", "aes_256_gcm"), ("chacha-13", "chacha20_poly1305"))


def _listen(stage: Stage, address: str, certificate: Path, authority: Authority, *options: str) -> None:
    files = f'{{certfile, "{certificate}"}}, {{keyfile, "{certificate}"}}, {{cacertfile, "{authority.file}"}}'
    every = ", ".join((files, *options))
    stage.broker.control(
        "eval", f'rabbit_networking:start_ssl_listener({{"{address}", {TLS_PORT}}}, [{every}], 1).'
    )  # fmt: skip


def _stop(stage: Stage, *addresses: str) -> None:
    for address in addresses:
        with contextlib.suppress(RuntimeError):
            stage.broker.control("eval", f'rabbit_networking:stop_tcp_listener({{"{address}", {TLS_PORT}}}).')


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tls-") as name:
        yield Path(name)


def _talk(stage: Stage, client: str, wrap: ssl.SSLContext | None, session: ssl.SSLSession | None = None) -> Any:
    """The same session whichever way it goes: three publishes with confirms, their deliveries, one long body."""
    connection = socket.create_connection(("127.0.0.1", TLS_PORT if wrap else PORT))
    stage.address(client, connection.getsockname(), connection.getpeername())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if wrap:
        connection = wrap.wrap_socket(connection, server_hostname=NAME, session=session)
        if session is not None:
            assert connection.session_reused
    peer = Peer(connection, stage.ledger(client))
    # what a client tells of itself must not tell them apart
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.wait(0, "connection.start")
    peer.send(0, commands.Connection.StartOk({"product": "scripted peer"}, "PLAIN", "\0guest\0guest", "en_US"))
    peer.wait(0, "connection.tune")
    peer.send(0, commands.Connection.TuneOk(2047, 131072, 0))
    peer.call(0, commands.Connection.Open("/"))
    peer.call(1, commands.Channel.Open())
    peer.call(1, commands.Queue.Declare(queue="session", exclusive=True))
    peer.call(1, commands.Confirm.Select())
    for number in range(1, 4):
        length = 700 if number == 3 else 20
        body = b"".join(hashlib.sha256(f"{number} {n}".encode()).digest() for n in range(length // 8))[: length * 4]
        peer.publish(1, "", "session", body, {"message_id": f"m-{number}"})
        peer.flush()
        peer.until(lambda: peer.book.confirms[-1]["outcome"] == "ack")
    peer.call(1, commands.Basic.Consume(queue="session", consumer_tag="c"))
    delivered(peer, 3)
    peer.send(1, Ack(1))
    peer.send(1, Ack(3, True))
    told = connection.session if wrap else None  # TLS 1.3 gives tickets after the handshake only
    peer.logout()
    return told


@scenario("one session in plain text and in TLS 1.2 and 1.3 with every kind of cipher, and resumed; with a key log")
def tls_sessions(stage: Stage) -> None:
    keylog = stage.path.with_suffix(".keylog")
    keylog.unlink(missing_ok=True)
    with _folder() as folder:
        authority = Authority(folder, "good")
        every = "{ciphers, ssl:cipher_suites(all, 'tlsv1.2') ++ ssl:cipher_suites(all, 'tlsv1.3')}"
        certificate = authority.issue("broker")
        _listen(stage, "127.0.0.1", certificate, authority, every, "{versions, ['tlsv1.3', 'tlsv1.2']}")
        with stage.sniff(ports=(PORT, TLS_PORT)):
            _talk(stage, "plain", None)
            for name, suite in SUITES_12:
                made = context(authority, keylog, "1.2", f"{suite}:@SECLEVEL=0")
                session = _talk(stage, name, made)
                if name == "gcm-128":
                    _talk(stage, "resumed-12", made, session)
        _stop(stage, "127.0.0.1")
    stage.keep("confirms", "settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.publish": 27, "basic.deliver": 27}


@scenario("the same in TLS 1.3, each of its ciphers, and resumed; one with a change of keys; with a key log")
def tls_sessions_13(stage: Stage) -> None:
    keylog = stage.path.with_suffix(".keylog")
    keylog.unlink(missing_ok=True)
    with _folder() as folder:
        authority = Authority(folder, "good")
        certificate = authority.issue("broker")
        with stage.sniff(ports=(PORT, TLS_PORT)):
            _talk(stage, "plain", None)
            for name, suite in SUITES_13:
                # clients of Python cannot choose a suite of TLS 1.3, the broker can
                only = f"#{{cipher => {suite}, key_exchange => any, mac => aead, prf => {_hash(suite)}}}"
                chosen = f"{{ciphers, [{only}]}}"
                tickets = "{session_tickets, stateful}"
                _listen(stage, "127.0.0.1", certificate, authority, chosen, "{versions, ['tlsv1.3']}", tickets)
                made = context(authority, keylog, "1.3")
                session = _talk(stage, name, made)
                if name == "aes-128":
                    _talk(stage, "resumed-13", made, session)
                if name == "aes-256":
                    _update_keys(stage, "key-update", authority, keylog)
                _stop(stage, "127.0.0.1")
    stage.keep("confirms", "settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.publish": 18, "basic.deliver": 15}


def _hash(suite: str) -> str:
    return "sha384" if "256_gcm" in suite else "sha256"


def _update_keys(stage: Stage, client: str, authority: Authority, keylog: Path) -> None:
    """A client by OpenSSL's tool, which changes its key and asks the broker for the same when it reads a K."""
    more = keylog.with_suffix(".more")
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{TLS_PORT}", "-servername", NAME, "-quiet", "-no_ign_eof"]
    command += ["-keylogfile", str(more), "-CAfile", str(authority.file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tool:
        assert tool.stdin and tool.stdout

        def send(data: bytes, seconds: float = 0.4) -> None:
            assert tool.stdin
            tool.stdin.write(data)
            tool.stdin.flush()
            time.sleep(seconds)

        send(PROTOCOL_HEADER, 1)
        send(wire.method(0, commands.Connection.StartOk({"product": "openssl"}, "PLAIN", "\0guest\0guest", "en_US")))
        tune = wire.method(0, commands.Connection.TuneOk(2047, 131072, 0))
        send(tune + wire.method(0, commands.Connection.Open("/")))
        send(wire.method(1, commands.Channel.Open()) + wire.method(1, commands.Confirm.Select()))
        for number in range(3):
            publish = commands.Basic.Publish(exchange="", routing_key="nowhere")
            send(b"".join(wire.content(1, publish, f"message {number}".encode(), {}, 4096)))
            send(b"K\n")
        send(wire.method(0, commands.Connection.Close(200, "bye", 0, 0)))
        tool.stdin.close()
        tool.wait(10)
    with keylog.open("ab") as log:
        log.write(more.read_bytes())
    more.unlink()


@scenario("one session in TLS 1.3 as pcapng with its secrets in the file", "pcapng")
def tls_secrets(stage: Stage) -> None:
    with _folder() as folder:
        authority = Authority(folder, "good")
        _listen(stage, "127.0.0.1", authority.issue("broker"), authority)
        with stage.sniff(ports=(TLS_PORT,), tool="dumpcap"):
            _talk(stage, "both", context(authority, folder / "keylog"))
        _stop(stage, "127.0.0.1")
        joined = folder / "joined.pcapng"
        subprocess.run(
            ["editcap", "--inject-secrets", f"tls,{folder}/keylog", str(stage.path), str(joined)], check=True
        )  # fmt: skip
        stage.path.write_bytes(joined.read_bytes())
    stage.keep("confirms", "settlements", "messages", "rpcs")
    stage.golden["counts"] = {"basic.publish": 3, "basic.deliver": 3}


@scenario("pika in TLS, with the key log that SSLKEYLOGFILE has it write: ten publishes, each with a confirm")
def tls_pika(stage: Stage) -> None:
    keylog = stage.path.with_suffix(".keylog")
    keylog.unlink(missing_ok=True)
    stage.backstage.call(1, commands.Queue.Declare(queue="basic", durable=True))
    with _folder() as folder:
        authority = Authority(folder, "good")
        _listen(stage, "127.0.0.1", authority.issue("broker"), authority)
        os.environ["SSLKEYLOGFILE"] = str(keylog)
        made = ssl.create_default_context(cafile=str(authority.file))
        del os.environ["SSLKEYLOGFILE"]
        with stage.sniff(ports=(TLS_PORT,)):
            ten_publishes(stage, port=TLS_PORT, ssl_options=pika.SSLOptions(made, NAME))
        _stop(stage, "127.0.0.1")
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"connections": 1, "basic.publish": 10, "basic.ack": 10}


def _shake(stage: Stage, client: str, made: ssl.SSLContext, address: str = "127.0.0.1", name: str = NAME) -> None:
    """A client whose handshake fails; with TLS 1.3 it may learn so only when it reads."""
    connection = socket.create_connection((address, TLS_PORT))
    stage.address(client, connection.getsockname(), connection.getpeername())
    said = ""
    try:
        with made.wrap_socket(connection, server_hostname=name) as wrapped:
            wrapped.settimeout(5)
            wrapped.sendall(PROTOCOL_HEADER)
            said = f"{len(wrapped.recv(100))} bytes"
    except OSError as error:
        said = str(error)
    connection.close()
    stage.events.append({"t_ns": time.time_ns(), "client": client, "told": said})
    assert "bytes" not in said or said == "0 bytes", (client, said)
    time.sleep(0.1)


@scenario("handshakes of TLS that fail: certificates refused by either side, versions, suites, patience, wrong ports")
def tls_failures(stage: Stage) -> None:
    verdicts = Verdicts(stage)
    keylog = stage.path.with_suffix(".keylog")
    keylog.unlink(missing_ok=True)
    with _folder() as folder:
        good, other = Authority(folder, "good"), Authority(folder, "other")
        certificate = good.issue("broker")
        _listen(stage, "127.0.0.1", certificate, good)
        _listen(stage, STRICT, certificate, good, "{verify, verify_peer}", "{fail_if_no_peer_cert, true}")
        _listen(stage, NEW, certificate, good, "{versions, ['tlsv1.3']}")
        suite = '"ECDHE-ECDSA-AES256-GCM-SHA384"'
        _listen(stage, NARROW, certificate, good, "{versions, ['tlsv1.2']}", f"{{ciphers, [{suite}]}}")
        _listen(stage, EXPIRED, good.issue("broker", days=30, begun=60), good)
        with stage.sniff(ports=(PORT, TLS_PORT)):
            for version in ("1.2", "1.3"):
                mine = context(good, keylog, version)
                _shake(stage, f"unknown authority {version}", context(other, keylog, version))
                verdicts.add(f"unknown authority {version}", "tls", "tls-server-certificate-refused")
                _shake(stage, f"wrong name {version}", mine, name="elsewhere.example")
                verdicts.add(f"wrong name {version}", "tls", "tls-server-certificate-refused")
                _shake(stage, f"expired {version}", mine, EXPIRED)
                verdicts.add(f"expired {version}", "tls", "tls-server-certificate-refused")
                _shake(stage, f"no client certificate {version}", mine, STRICT)
                verdicts.add(f"no client certificate {version}", "tls", "tls-client-certificate-missing")
                stranger = context(good, keylog, version, own=other.issue("stranger"))
                _shake(stage, f"client of another authority {version}", stranger, STRICT)
                verdicts.add(f"client of another authority {version}", "tls", "tls-client-certificate-refused")
            _shake(stage, "old client", context(good, keylog, "1.2"), NEW)
            verdicts.add("old client", "tls", "tls-no-common-version")
            _shake(stage, "new client", context(good, keylog, "1.3"), NARROW)
            verdicts.add("new client", "tls", "tls-no-common-version")
            _shake(stage, "no common suite", context(good, keylog, "1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"), NARROW)
            verdicts.add("no common suite", "tls", "tls-no-common-cipher")

            peer = stage.connect("plain on TLS", port=TLS_PORT)
            peer.socket.sendall(PROTOCOL_HEADER)
            _read_to_end(peer)
            peer.socket.close()
            verdicts.add("plain on TLS", "header", "plain-on-tls-port")

            hello = _hello(context(good, None))
            peer = stage.connect("TLS on plain", port=PORT)
            peer.socket.sendall(hello)
            _read_to_end(peer)
            peer.socket.close()
            verdicts.add("TLS on plain", "tls", "tls-on-plain-port")

            silent = stage.connect("says nothing", port=TLS_PORT)
            stuck = stage.connect("only a hello", port=TLS_PORT)
            stuck.socket.sendall(hello)
            for peer in (silent, stuck):
                _read_to_end(peer)
                peer.socket.close()
            verdicts.add("says nothing", "tcp", "handshake-timeout", slow="client")
            verdicts.add("only a hello", "tls", "tls-handshake-timeout", slow="client")

            pause = threading.Thread(target=stage.broker.pause, args=(4,))
            pause.start()
            time.sleep(0.3)
            peer = stage.connect("gives up", port=TLS_PORT)
            peer.socket.sendall(hello)
            time.sleep(3)
            peer.socket.close()
            pause.join()
            verdicts.add("gives up", "tls", "client-timeout", slow="server")
        _stop(stage, "127.0.0.1", STRICT, NEW, NARROW, EXPIRED)


def _hello(made: ssl.SSLContext) -> bytes:
    """The first bytes that a client says."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        made.wrap_bio(incoming, outgoing, server_hostname=NAME).do_handshake()
    return outgoing.read()
