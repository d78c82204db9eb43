"""Columns made by kernels are those that pyarrow makes."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.fields.columns import spread
from tests.dissector.runs import BOTH

ROW = st.tuples(
    st.integers(0, 20), st.none() | st.booleans(), st.none() | st.integers(-5, 5), st.none() | st.text(max_size=20)
)


@BOTH
@given(rows=st.lists(ROW, min_size=1, max_size=12), skipped=st.integers(0, 3))
def test_rows_are_repeated(
    compiled: bool, rows: list[tuple[int, bool | None, int | None, str | None]], skipped: int
) -> None:
    counts, bools, integers, texts = map(list, zip(*rows, strict=True))
    held = {
        "bool": pa.array(bools, pa.bool_()), "int32": pa.array(integers, pa.int32()),
        "int64": pa.array(integers, pa.int64()), "text": pa.array(texts, pa.string()),
        "time": pa.array(integers, pa.int64()).view(pa.timestamp("us", "UTC")),
    }  # fmt: skip
    held = {name: column.slice(skipped) for name, column in held.items()}
    found = spread(held, np.array(counts[skipped:], np.int64), compiled)
    for name, column in held.items():
        if column.null_count == len(column):
            assert name not in found
            continue
        found[name].validate(full=True)
        expected = [value for value, n in zip(column.to_pylist(), counts[skipped:], strict=True) for _ in range(n)]
        assert found[name].type == column.type
        assert found[name].to_pylist() == expected
