"""Remember consumers and deliveries of AMQP 0-9-1 as frames go by: from which queue one is, what an ack settles."""

from collections.abc import Hashable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.formatting import counted
from amqpscope.dissector.handshakes.facts import duration

MOST = 100_000
"""Consumers, and deliveries that are not settled yet, that are remembered; the oldest are forgotten."""
MOST_ASKED = 100
"""Requests of a channel that are remembered until they are answered."""
TABLE = "amqp091_frames"
SETTLING = ("basic.ack", "basic.nack", "basic.reject")
_QUEUES = (
    "basic.consume", "basic.consume-ok", "basic.get", "basic.get-ok", "basic.get-empty", "basic.deliver",
    "queue.declare-ok",
)  # fmt: skip
_DELIVERING = ("basic.deliver", "basic.get-ok")
_ASKING = ("basic.consume", "basic.get")
_KEY = ("connection_id", "channel", "channel_epoch")


class Queues:
    """Queues of deliveries, by the consumers and gets that were seen on their channel."""

    def __init__(self) -> None:
        self._consumers: dict[Hashable, str] = {}
        self._asked: dict[Hashable, list[str]] = {}
        self._declared: dict[Hashable, str] = {}

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the queue that each frame of a batch was delivered from; null where it is none, or not known."""
        rows = _rows(batch, pc.is_in(batch.column("method"), pa.array(_QUEUES)), ("method", "queue", "consumer_tag"))
        found: list[str | None] = [None] * batch.num_rows
        for at, key, row in rows:
            found[at] = self._take(key, row)
        return pa.array(found, pa.string())

    def _take(self, key: tuple[Any, ...], row: dict[str, Any]) -> str | None:
        method, tag = row["method"], row["consumer_tag"]
        if method == "queue.declare-ok":
            _keep(self._declared, key, row["queue"])
        elif method == "basic.deliver":
            return self._consumers.get((key, tag))
        elif method == "basic.consume-ok":
            queue = None if (key, tag) in self._consumers else self._answered((key, "consume"))
            if queue is not None:
                _keep(self._consumers, (key, tag), queue)
        elif method in ("basic.consume", "basic.get"):
            queue = row["queue"] or self._declared.get(key, "")
            if tag:
                _keep(self._consumers, (key, tag), queue)
            else:
                asked = (key, method.rpartition(".")[2])
                waiting = self._asked.get(asked, [])
                _keep(self._asked, asked, waiting)
                if len(waiting) < MOST_ASKED:
                    waiting.append(queue)
        else:
            queue = self._answered((key, "get"))
            return queue if method == "basic.get-ok" else None
        return None

    def _answered(self, asked: Hashable) -> str | None:
        """Return the queue of the request that is answered; None where requests for several queues are open."""
        waiting = self._asked.get(asked) or [""]
        queue = waiting[0] if len({*waiting}) == 1 else ""
        waiting.pop(0)
        return queue or None


class Unsettled:
    """Deliveries that a client has not settled yet, and what its acks say of them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], dict[int, int]] = {}
        self._last: dict[Hashable, int] = {}
        self._unsure: dict[Hashable, bool] = {}
        self._count = 0

    def notes(self, batch: pa.RecordBatch) -> dict[tuple[int, int], str]:
        """Return what each ack of a batch settles and how late, by connection and frame.

        A time runs from the last byte of the delivery. Only deliveries that were seen are counted. Of an ack of several
        nothing is said where some of them may have been forgotten, or need none (no_ack, or a channel opened earlier).
        """
        method, kind = batch.column("method"), batch.column("frame_type")
        looked = pc.is_in(method, pa.array([*_DELIVERING, *SETTLING, *_ASKING]))
        content = pc.is_in(kind, pa.array(["header", "body"]))
        columns = ("method", "delivery_tag", "multiple", "no_ack", "ts_ns", "frame_no", "from_client")
        found = {}
        for _, key, row in _rows(batch, pc.or_(pc.fill_null(looked, False), content), columns):
            if row["from_client"] and row["method"] in SETTLING:
                settled = self._settle(key, row)
                if settled:
                    late = duration(row["ts_ns"] - min(settled))
                    several = f"{counted(len(settled), 'delivery', 'deliveries')} seen, the oldest "
                    found[key[0], row["frame_no"]] = (
                        f"settles {several if row['multiple'] else 'a delivery '}{late} late"
                    )
            elif row["method"] in _DELIVERING:
                self._deliver(key, row)
            elif row["method"] in _ASKING:
                if row["no_ack"]:
                    _keep(self._unsure, key, True)
            elif row["method"] is None and not row["from_client"] and key in self._last:
                tags = self._seen.get(key, {})
                if self._last[key] in tags:
                    tags[self._last[key]] = row["ts_ns"]
        return found

    def _deliver(self, key: tuple[Any, ...], row: dict[str, Any]) -> None:
        if self._count >= MOST:
            for each in self._seen:
                _keep(self._unsure, each, True)
            self._seen.clear()
            self._count = 0
        self._count += 1
        self._seen.setdefault(key, {})[row["delivery_tag"]] = row["ts_ns"]
        _keep(self._last, key, row["delivery_tag"])

    def _settle(self, key: tuple[Any, ...], row: dict[str, Any]) -> list[int]:
        tags, tag = self._seen.get(key, {}), row["delivery_tag"]
        wanted = [each for each in tags if each <= tag or tag == 0] if row["multiple"] else [tag]
        times = [tags.pop(each) for each in wanted if each in tags]
        self._count -= len(times)
        return [] if row["multiple"] and (key in self._unsure or not key[2]) else times


def _rows(
    batch: pa.RecordBatch, where: pa.Array, columns: tuple[str, ...]
) -> list[tuple[int, tuple[Any, ...], dict[str, Any]]]:
    """Return the place, the channel and these columns of the rows of a batch that are looked at."""
    places = pc.indices_nonzero(where).to_pylist()
    rows = batch.select([*_KEY, *columns]).take(pa.array(places, pa.int64())).to_pylist()
    return [(at, tuple(row[name] for name in _KEY), row) for at, row in zip(places, rows, strict=True)]


def _keep(known: dict[Any, Any], key: Hashable, value: Any) -> None:
    if key not in known and len(known) >= MOST:
        known.pop(next(iter(known)))
    known[key] = value
