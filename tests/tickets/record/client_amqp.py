"""py-amqp, the client of Celery, driven by lines of a script: see clients.py."""

import json
import ssl
import sys
import time
from collections import defaultdict, deque
from typing import Any

import amqp  # type: ignore[import-not-found,import-untyped,unused-ignore]

TLS = {"cert_reqs": ssl.CERT_NONE, "ssl_version": ssl.PROTOCOL_TLS_CLIENT, "ciphers": "DEFAULT@SECLEVEL=0",
       "tls_minimum_version": ssl.TLSVersion.TLSv1}  # fmt: skip
"""Whatever version the broker speaks."""


class Client:
    """One connection."""

    def open(self, **given: Any) -> None:
        """Log in."""
        self.connection = amqp.Connection(
            f"{given['host']}:{given['port']}", given["user"], given["password"], virtual_host=given["vhost"],
            heartbeat=given["heartbeat"], channel_max=given["channel_max"] or 65535,
            client_properties={"connection_name": given["name"]} if given["name"] else {}, connect_timeout=20,
            ssl=TLS if given.get("tls") else False,
        )  # fmt: skip
        if given.get("mute"):
            known = self.connection.negotiate_capabilities
            self.connection.negotiate_capabilities = known | {"connection.blocked": False}
        self.connection.connect()
        self.channels: dict[int, Any] = {}
        self.inbox: dict[int, deque[Any]] = defaultdict(deque)
        self.open_confirms: dict[int, int] = defaultdict(int)
        self.last: dict[int, int] = {}
        self.refused: set[int] = set()

    def channel_open(self, channel: int = 1, confirms: bool = False) -> None:
        """Open a channel."""
        made = self.channels[channel] = self.connection.channel()
        self.open_confirms[channel] = self.last[channel] = 0

        def settle(tag: int, multiple: bool) -> None:
            self.open_confirms[channel] -= tag - self.last[channel] if multiple else 1
            self.last[channel] = tag

        def refuse(tag: int, multiple: bool) -> None:
            self.refused.add(channel)
            settle(tag, multiple)

        if confirms:
            made.confirm_select()
            made.events["basic_ack"].add(settle)
            made._callbacks[60, 120] = lambda tag, multiple=False, *_: refuse(tag, multiple)
        made.events["basic_return"].add(lambda *_: None)
        self.confirms = confirms

    def channel_close(self, channel: int = 1) -> None:
        """Close it."""
        self.channels[channel].close()

    def declare(self, queue: str, channel: int = 1, durable: bool = True, **given: Any) -> None:
        """Declare a queue."""
        given = {"auto_delete": False} | given
        self.channels[channel].queue_declare(queue, durable=durable, **given)

    def exchange(self, exchange: str, kind: str = "direct", channel: int = 1, arguments: Any = None) -> None:
        """Declare an exchange."""
        made = self.channels[channel]
        made.exchange_declare(exchange, kind, durable=True, auto_delete=False, arguments=arguments)

    def bind(self, queue: str, exchange: str, key: str, channel: int = 1) -> None:
        """Bind a queue."""
        self.channels[channel].queue_bind(queue, exchange, key)

    def unbind(self, queue: str, exchange: str, key: str, channel: int = 1) -> None:
        """Unbind it."""
        self.channels[channel].queue_unbind(queue, exchange, key)

    def publish(self, key: str, exchange: str = "", body: str = "x", channel: int = 1, **given: Any) -> None:
        """Publish, perhaps several times."""
        for _ in range(given.get("repeat", 1)):
            message = amqp.Message(body, delivery_mode=2, **given.get("properties", {}))
            self.channels[channel].basic_publish(message, exchange, key, mandatory=given.get("mandatory", False))
            self.open_confirms[channel] += 1

    def wait(self, channel: int = 1, seconds: float = 30) -> bool:
        """Wait for all confirms; True where none was refused."""
        end = time.monotonic() + seconds
        while self.open_confirms[channel] > 0 and time.monotonic() < end:
            self._drain(0.05)
        return channel not in self.refused

    def transact(self, channel: int = 1) -> None:
        """Have what is published wait for a commit."""
        self.channels[channel].tx_select()

    def commit(self, channel: int = 1) -> None:
        """End a transaction, and wait for that."""
        self.channels[channel].tx_commit()

    def qos(self, count: int, channel: int = 1) -> None:
        """Set the prefetch."""
        self.channels[channel].basic_qos(0, count, False)

    def consume(self, queue: str, channel: int = 1, tag: str = "", priority: int | None = None, **given: Any) -> Any:
        """Begin a consumer."""
        box = self.inbox[channel]
        arguments = {"x-priority": priority} if priority is not None else None
        made = self.channels[channel]
        return made.basic_consume(queue, tag, callback=box.append, arguments=arguments, **given)

    def cancel(self, tag: str, channel: int = 1) -> None:
        """End a consumer."""
        self.channels[channel].basic_cancel(tag)

    def take(self, channel: int = 1, seconds: float = 1) -> Any:
        """Return the next delivery, or None."""
        box, end = self.inbox[channel], time.monotonic() + seconds
        while not box and time.monotonic() < end:
            self._drain(0.05)
        return shown(box.popleft()) if box else None

    def get(self, queue: str, channel: int = 1, no_ack: bool = False) -> Any:
        """Ask for a message."""
        found = self.channels[channel].basic_get(queue, no_ack)
        return found and shown(found)

    def ack(self, tag: int, channel: int = 1, multiple: bool = False) -> None:
        """Acknowledge."""
        self.channels[channel].basic_ack(tag, multiple)

    def reject(self, tag: int, channel: int = 1, requeue: bool = False) -> None:
        """Reject."""
        self.channels[channel].basic_reject(tag, requeue)

    def delete(self, queue: str, channel: int = 1) -> None:
        """Delete a queue."""
        self.channels[channel].queue_delete(queue)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _drain(self, seconds: float) -> None:
        try:
            self.connection.drain_events(timeout=seconds)
        except OSError as error:
            if "timed out" not in str(error):
                raise


def shown(message: Any) -> dict[str, Any]:
    """Return what a script asks of a delivery."""
    info, properties = message.delivery_info, message.properties
    return {
        "tag": info["delivery_tag"],
        "body": message.body if isinstance(message.body, str) else message.body.decode(),
        "redelivered": info["redelivered"],
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
    }


if __name__ == "__main__":
    client = Client()
    for line in sys.stdin:
        op, given = json.loads(line)
        try:
            answer = {"value": getattr(client, op)(**given)}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
