"""Names as numbers."""

import numpy as np
import pyarrow as pa
import pytest

from amqpscope.pipelines.model import names
from amqpscope.pipelines.model.names import NO_NAME, NONE, Names


def test_names_that_nobody_needs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "NAMES_AT_MOST", 3)
    known = Names()
    first = known.numbers(pa.array(["a", "", None, "b", "a"]))
    assert first.tolist() == [1, NO_NAME, NONE, 2, 1]
    many = known.numbers(pa.array([f"n{number}" for number in range(20)]))
    known.prune(np.array([2]), many[-1:])
    assert known.table()["name"].to_pylist() == ["b", "n19"]
    assert known.take(np.array([2, NONE, int(many[-1])])).to_pylist() == ["b", None, "n19"]
