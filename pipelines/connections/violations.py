"""Violations: what a peer sent though its protocol does not allow it, as the dissector found it.

A broker answers such a frame with a close, or ends TCP without one: then this is the only trace of why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from amqpscope.pipelines.model.events import ANOMALIES, EV, Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform

CODES = (
    "frame-type-unknown", "frame-end-wrong", "frame-too-large", "frame-length-wrong", "frame-version-unknown",
    "frame-flags-unknown", "frame-head-wrong", "frame-too-short", "frame-track-wrong", "frame-reserved-set",
    "amqp-header-unexpected", "tls-unexpected", "http-unexpected", "channel-wrong", "method-unknown",
    "control-unknown", "command-unknown", "records-malformed", "record-count-wrong", "field-overrun",
    "table-malformed", "table-type-unknown", "content-unexpected", "content-interrupted", "body-too-large",
)  # fmt: skip
"""Anomalies that a peer makes."""
_WORDS = tuple(what(ANOMALIES, code) for code in CODES)
_COPIED = ("connection_id", "from_client", "code", "detail", "frame_no", "capture", "packet", "ts_ns")


class Violations(Remembers):
    """The walk that writes `violations`."""

    tables = ("violations",)
    needs: ClassVar[Mapping[int, Needs]] = {ANOMALIES: Needs(("capture", "packet", "detail"), CODES)}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield a row for each anomaly that a peer made."""
        at = np.flatnonzero(events.among(_WORDS) & (events.matrix[:, EV.FROM_CLIENT] >= 0))
        if len(at):
            rows = events.take(ANOMALIES, at, _COPIED)
            yield "violations", conform("violations", {name: rows[name] for name in _COPIED}, len(at))
