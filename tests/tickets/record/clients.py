"""Clients of several languages that do the same: one scenario is played by each.

A client is a program that reads a line of JSON, an operation and its arguments, does that, and answers with a line:
its value or its error. Channels have the numbers that the scenario gives them; 1 where it gives none.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.captures.record.broker import PORT
from tests.captures.record.theme_contents import AMQPLIB
from tests.tickets.record.stage import TICKETS, Ticket

HERE = Path(__file__).parent
PROGRAMS = {
    "amqp": [sys.executable, str(HERE / "client_amqp.py")],
    "amqplib": ["node", str(HERE / "client_amqplib.cjs")],
    "bunny": ["ruby", str(HERE / "client_bunny.rb")],
}
"""Python's amqp (of Celery), Node.js, and Ruby."""
ALL = tuple(PROGRAMS)
TWO = ("amqplib", "bunny")
"""Where a scenario has been played by one of Python before."""


OLD_TLS = {
    "OPENSSL_CONF": str(HERE / "old_tls.cnf"),
    "NODE_OPTIONS": "--tls-min-v1.0 --tls-cipher-list=DEFAULT@SECLEVEL=0 --no-warnings",
}
"""What has clients speak versions of TLS that their libraries no longer do by themselves."""


class Refused(Exception):
    """What a client was asked for failed; its text."""


class Client:
    """A connection of a client, which has a program of its own; any operation of it is a method."""

    def __init__(self, kind: str, name: str | None, host: str = "127.0.0.1", **login: Any) -> None:
        environment = dict(os.environ) | {"NODE_PATH": str(AMQPLIB / "node_modules"), **OLD_TLS}
        self._process = subprocess.Popen(
            PROGRAMS[kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        given = {"port": PORT, "vhost": "/", "user": "guest", "password": "guest", "heartbeat": 60, "channel_max": None}
        self.call("open", name=name, host=host, **(given | login))

    def begin(self, operation: str, **given: Any) -> None:
        """Have it do something, without waiting."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no result
            self._process.stdin.write(json.dumps([operation, given]) + "\n")
            self._process.stdin.flush()

    def result(self) -> Any:
        """Return what it answers to what was begun.

        Raises:
            Refused: it failed.
        """
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or '{"error": "the client is gone"}')
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    def call(self, operation: str, **given: Any) -> Any:
        """Have it do something, and wait for that."""
        self.begin(operation, **given)
        return self.result()

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return lambda **given: self.call(operation, **given)

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._process.pid

    def kill(self) -> None:
        """End its program."""
        self._process.kill()
        self._process.wait()


class Play:
    """A ticket that one kind of client plays."""

    def __init__(self, stage: Ticket, kind: str) -> None:
        self.stage, self.kind, self.name = stage, kind, stage.name
        self._clients: list[Client] = []
        self.broker, self.sniff = stage.broker, stage.sniff

    def client(self, name: str | None, **login: Any) -> Client:
        """Return a client that is logged in."""
        made = Client(self.kind, name, **login)
        self._clients.append(made)
        return made

    def publisher(self, name: str, **login: Any) -> Client:
        """Return a client that has declared the ticket's queue, with its channel in confirm mode."""
        client = self.client(name, **login)
        client.channel_open(confirms=True)
        client.declare(queue=self.name)
        return client

    def worker(self, name: str, prefetch: int = 0, host: str = "127.0.0.1", **consume: Any) -> Client:
        """Return a client that consumes from the ticket's queue."""
        client = self.client(name, host=host)
        client.channel_open()
        if prefetch:
            client.qos(count=prefetch)
        client.consume(queue=self.name, tag=name, **consume)
        return client

    def fill(self, count: int, **declared: Any) -> None:
        """Put messages into the ticket's queue, which nobody sees."""
        away = self.stage.backstage
        away.call(1, commands.Queue.Declare(queue=self.name, durable=True, arguments=declared))
        for _ in range(count):
            away.publish(1, "", self.name, b"job")
        away.flush()

    def close(self) -> None:
        """End all programs."""
        for each in self._clients:
            each.kill()


def tickets(*kinds: str) -> Callable[[Callable[[Play], None]], Callable[[Play], None]]:
    """Registers a function as the scenario NAME_KIND for each of these kinds of clients."""

    def register(run: Callable[[Play], None]) -> Callable[[Play], None]:
        for kind in kinds:

            def played(stage: Ticket, kind: str = kind) -> None:
                play = Play(stage, kind)
                try:
                    run(play)
                finally:
                    play.close()

            TICKETS[f"{run.__name__}_{kind}"] = played
        return run

    return register
