"""`python -m tests.benchmarks.waiting`: time and memory of all walks over one connection on which nothing is answered.

Events are made as they are fed, in batches as Spark feeds them, and rows that come out are counted and let go: what
remains is what the walks hold. Each kind and size is a process of its own. No time is asserted.

    python -m tests.benchmarks.waiting --events 1000000 2000000 [--kinds publishes deliveries ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.event_rows import ACKED, prepared
from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.run import kernels
from amqpscope.pipelines.run.event_store import completed, layouts
from amqpscope.pipelines.statistics import chains, needs_of

BATCH = 1 << 16
"""Events of a batch."""
STEP_NS = 10_000
Columns = dict[str, Any]


def _publishes(number: Any) -> Columns:
    """In confirm mode, never confirmed."""
    return {
        "kind": "publish", "protocol": "amqp-0-9-1", "from_client": True, "publish_seq": number + 1,
        "publish_seq_unsure": False, "mandatory": False, "exchange": "orders", "routing_key": _keys(number),
        "body_size": 300,
    }  # fmt: skip


def _mandatory(number: Any) -> Columns:
    """The same, that may be returned and are not."""
    return _publishes(number) | {"mandatory": True, "body_hash": number % 1000}


def _lost(number: Any) -> Columns:
    """The same where the capture began in the middle: no number is certain."""
    return _publishes(number) | {"publish_seq": None, "publish_seq_unsure": True}


def _deliveries(number: Any) -> Columns:
    """Never acknowledged."""
    return {
        "kind": "deliver", "protocol": "amqp-0-9-1", "from_client": False, "delivery_tag": number + 1, "no_ack": False,
        "consumer_tag": "c", "exchange": "orders", "routing_key": _keys(number), "body_size": 300,
    }  # fmt: skip


def _both(number: Any) -> Columns:
    """Publishes and deliveries in turn."""
    half, sent = number // 2, number % 2 == 0
    return _publishes(half) | {
        "kind": _either(number, "publish", "deliver"), "from_client": sent, "no_ack": False, "consumer_tag": "c",
        "publish_seq": pa.array(half + 1, mask=~sent), "delivery_tag": pa.array(half + 1, mask=sent),
    }  # fmt: skip


def _stream_publishes(number: Any) -> Columns:
    """Publishing ids never confirmed."""
    return {
        "kind": "publish", "protocol": "rabbitmq-stream", "from_client": True, "publish_seq": number,
        "publisher_id": 1, "publisher_epoch": 1, "publisher_reference": "p", "stream": "s", "body_size": 300,
        "channel": None, "channel_epoch": None,
    }  # fmt: skip


def _requests(number: Any) -> Columns:
    """Never answered."""
    return {"method": "queue.declare", "from_client": True, "queue": _keys(number), "no_wait": False}


def _gets(number: Any) -> Columns:
    """Never answered."""
    return {"method": "basic.get", "from_client": True, "queue": _keys(number), "no_ack": False}


def _acks(number: Any) -> Columns:
    """After qos and consume: of one delivery after the other, each of which fills the window."""
    method = np.minimum(number // 2, 2)
    return {
        "method": pa.array(["basic.qos", "basic.consume", "basic.ack"]).take(pa.array(method)), "from_client": True,
        "delivery_tag": number // 2 + 1, "multiple": False, "prefetch_count": 1,
        "consumer_tag": "c", "queue": "q", "global": False, "no_wait": True,
    }  # fmt: skip


def _one_by_one(number: Any) -> Columns:
    """A delivery before each of these."""
    return _deliveries(number // 2)


def _blocked(number: Any) -> Columns:
    """Blocked and unblocked in turn."""
    return {"method": _either(number, "connection.blocked", "connection.unblocked"), "from_client": False,
            "channel": 0, "reason": "low on memory"}  # fmt: skip


def _refused(number: Any) -> Columns:
    """A request for a queue that is not there and the close of its channel, in turn."""
    closes = number % 2
    return {
        "method": _either(number, "queue.declare", "channel.close"), "from_client": closes == 0, "queue": _keys(number),
        "channel_epoch": (number // 2 + 1).astype(np.int32), "reply_code": pa.array([0, 404]).take(pa.array(closes)),
        "reply_text": "NOT_FOUND", "class_id": 50, "method_id": 10, "no_wait": False,
    }  # fmt: skip


KINDS: dict[str, tuple[tuple[int, Callable[[Any], Columns]], ...]] = {
    "publishes": ((ev.MESSAGES, _publishes),),
    "mandatory": ((ev.MESSAGES, _mandatory),),
    "lost": ((ev.MESSAGES, _lost),),
    "deliveries": ((ev.MESSAGES, _deliveries),),
    "both": ((ev.MESSAGES, _both),),
    "prefetch": ((FRAMES, _acks), (ev.MESSAGES, _one_by_one)),
    "stream-publishes": ((ev.MESSAGES, _stream_publishes),),
    "requests": ((FRAMES, _requests),),
    "gets": ((FRAMES, _gets),),
    "blocked": ((FRAMES, _blocked),),
    "refused": ((FRAMES, _refused),),
}
"""The sources of the events of each kind, in turn, and what makes their columns of the numbers of the events."""


def _keys(number: Any) -> pa.Array:
    return pa.array([f"eu.{i}" for i in range(100)]).take(pa.array(number % 100))


def _either(number: Any, even: str, odd: str) -> pa.Array:
    return pa.array([even, odd]).take(pa.array(number % 2))


def batches(kind: str, count: int, compiled: bool) -> Iterator[Events]:
    """So many events of a kind, after the row of their connection."""
    kept = layouts(needs_of(chains()))
    whole = {"connection_id": 1, "protocol": "amqp-0-9-1", "first_ts_ns": 0, "last_ts_ns": count * STEP_NS}
    connection = _rows(ev.CONNECTIONS, whole | {"is_partial": False}, 1, kept, compiled)
    yield Events.mixed({ev.CONNECTIONS: connection}, np.full(1, ev.CONNECTIONS, np.int8))
    parts = KINDS[kind]
    for first in range(0, count, BATCH):
        number = np.arange(first, min(first + BATCH, count))
        sources = np.array([source for source, _ in parts], np.int8)[number % len(parts)]
        tables = {}
        for turn, (source, columns) in enumerate(parts):
            mine = number[number % len(parts) == turn]
            place = {
                "connection_id": 1, "frame_no": mine, "first_frame_no": mine, "channel": 1, "channel_epoch": 1,
                "ts_ns": mine * STEP_NS, "first_ts_ns": mine * STEP_NS, "capture": "a.pcap", "packet": mine + 1,
                "is_partial": False, "frame_type": "method",
            }  # fmt: skip
            tables[source] = _rows(source, place | columns(mine), len(mine), kept, compiled)
        yield Events.mixed(tables, sources)


def _rows(source: int, columns: Columns, count: int, kept: Any, compiled: bool) -> pa.Table:
    arrays = {
        name: value if isinstance(value, np.ndarray | pa.Array) else pa.repeat(pa.scalar(value), count)
        for name, value in columns.items()
        if value is not None
    }
    layout = kept[source]
    rows = completed(source, pa.table(arrays), layout.base)
    made = prepared(source, rows, (*layout.leading, *layout.further), compiled)
    return made if ACKED in made.column_names else made.append_column(ACKED, pa.nulls(count, pa.int64()))


def measure(kind: str, count: int) -> dict[str, Any]:
    """Walk over so many events of a kind; what that took of this process."""
    compiled = kernels.begin(1 << 30)
    walks = chains(compiled)
    seconds: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    most = 0
    before = _anonymous()
    for events in _then_none(batches(kind, 1, compiled)):  # what is loaded once
        for chain in walks:
            list(chain.feed(events) if events is not None else chain.finish())
    for events in _then_none(batches(kind, count, compiled)):
        for chain in walks:
            begun = time.process_time()
            for name, found in chain.feed(events) if events is not None else chain.finish():
                rows[name] += len(found)
                most = max(most, _anonymous())
            seconds[type(chain.walk).__name__] += time.process_time() - begun
        most = max(most, _anonymous())
    kernels.end(compiled)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "kind": kind,
        "events": count,
        "cpu_s": {name: round(each, 2) for name, each in seconds.most_common() if each >= 0.1},
        "walks_cpu_s": round(seconds.total(), 2),
        "peak_mb": used.ru_maxrss // 1024,
        "anonymous_mb": most >> 20,
        "anonymous_before_mb": before >> 20,
        "rows": dict(rows),
    }


def _then_none(events: Iterator[Events]) -> Iterator[Events | None]:
    yield from events
    yield None


def _anonymous() -> int:
    """Bytes of this process in memory that no file stands for."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def main() -> None:
    """Measure each kind and size in a process of its own, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 2_000_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    if len(arguments.events) == len(arguments.kinds) == 1:
        print(json.dumps(measure(arguments.kinds[0], arguments.events[0])))
        return
    for kind in arguments.kinds:
        for count in arguments.events:
            command = [sys.executable, "-m", __spec__.name, "--kinds", kind, "--events", str(count)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
