"""Waits for credit as rows of `flow_control`, of any protocol that grants credit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.credit import NONE, WT
from amqpscope.pipelines.model.rows import Retained
from amqpscope.pipelines.model.speaking import difference
from amqpscope.pipelines.model.walk import Rows, conform, known


def rows_of(waits: Ints, retained: Retained, cause: str, consumers: Mapping[str, Any]) -> Rows:
    """Return waits (WT) that a kernel wrote, as rows.

    Args:
        waits: one or more.
        retained: the frames that began and ended them.
        cause: why one side waited.
        consumers: columns that say who.
    """
    start, end = waits[:, WT.START_TS], waits[:, WT.END_TS]
    columns: dict[str, Any] = {}
    for name, ids in (("start", waits[:, WT.START]), ("end", waits[:, WT.END])):
        frames = retained.get(ids)
        for place in ("frame_no", "capture", "packet"):
            columns[f"{name}_{place}"] = frames[place] if frames is not None else None
    columns |= {
        "connection_id": waits[:, WT.CONNECTION],
        "cause": cause,
        "start_ts_ns": start,
        "end_ts_ns": pa.array(end, mask=(waits[:, WT.SEEN] == 0) | (end == NONE)),
        # where the clock stepped back, how long it was is not known
        "duration_ns": difference(known(np.where(end < start, NONE, end), NONE), pa.array(start)),
        "side": "client",
        "evidence": pa.array(["possible", "proven"]).take(pa.array(waits[:, WT.PROVEN])),
    }
    return "flow_control", conform("flow_control", columns | {**consumers}, len(waits))
