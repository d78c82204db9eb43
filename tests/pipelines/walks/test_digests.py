from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from amqpscope.dissector.kernels.hashing import SEED
from amqpscope.pipelines.model.digests import combined, content, content_columns, has_body, hashed
from tests.dissector.runs import BOTH
from tests.pipelines.scenario import arrow_table

TEXTS = ["", "a", None, "queue", "q" * 31, "q" * 32, "q" * 33, "ä" * 100, "queue"]


def xxh64(value: str | None) -> int:
    """The hash as another implementation has it, as int64."""
    if value is None:
        return 0
    return int(np.uint64(xxhash.xxh64_intdigest(value.encode(), seed=SEED)).view(np.int64))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()])
@BOTH
def test_strings_hash_as_xxh64(kind, compiled):
    array = pa.array(TEXTS, pa.string()).cast(kind)
    assert hashed(array, compiled).tolist() == [xxh64(text) for text in TEXTS]
    assert hashed(array[2:5], compiled).tolist() == [xxh64(text) for text in TEXTS[2:5]]


def test_chunks_and_dictionaries_hash_as_their_values():
    array = pa.array(TEXTS)
    expected = hashed(array).tolist()
    assert hashed(pa.chunked_array([array[:3], array[3:3], array[3:]])).tolist() == expected
    assert hashed(pa.chunked_array([], pa.string())).tolist() == []
    assert hashed(array.dictionary_encode()).tolist() == expected
    assert hashed(array.dictionary_encode()[2:5]).tolist() == expected[2:5]


def test_numbers_hash_by_value():
    values = [0, 1, None, -1, 2**63 - 1, -(2**63), -0x61C8864680B583EB, *range(2, 1000)]
    found = hashed(pa.array(values, pa.int64())).tolist()
    assert [value == 0 for value in found] == [value is None for value in values]
    assert len(set(found)) == len(values)
    assert hashed(pa.array([7, None], pa.int32())).tolist() == hashed(pa.array([7, None], pa.int64())).tolist()
    assert hashed(pa.array([1, 0, None], pa.int8())).tolist() == hashed(pa.array([True, False, None])).tolist()
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert hashed(pa.array([when], pa.timestamp("us", "UTC"))).tolist() == [
        hashed(pa.array([int(when.timestamp()) * 10**6])).tolist()[0]
    ]


def test_numbers_hash_as_splitmix64():
    found = hashed(pa.array([0, 1234567])).view(np.uint64).tolist()
    assert found == [0xE220A8397B1DCDAF, 6457827717110365317], "first numbers for these seeds, as published"


def test_null_is_zero_and_costs_nothing():
    assert hashed(pa.nulls(3)).tolist() == hashed(pa.nulls(3, pa.string())).tolist() == [0, 0, 0]
    assert combined([pa.nulls(2), pa.nulls(2, pa.int64())]).tolist() == [0, 0]


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="double"):
        hashed(pa.array([1.0]))


def test_columns_count_for_their_place():
    one, two, none = pa.array(["a", None]), pa.array(["b", None]), pa.nulls(2, pa.string())
    kinds = [[one, two], [two, one], [one, none], [none, one], [one, one], [none, two]]
    assert len({combined(kind).tolist()[0] for kind in kinds}) == len(kinds)
    assert {combined(kind).tolist()[1] for kind in kinds} == {0}
    assert combined([one, None, two]).tolist() == combined([one, none, two]).tolist()
    assert combined([hashed(one), two]).tolist() == combined([one, two]).tolist()


def test_content_is_what_a_broker_passes_on():
    row = dict.fromkeys(content_columns()) | {
        "exchange": "e", "routing_key": "k", "body_size": 5, "body_hash": 9, "message_id": "m", "priority": 0,
    }  # fmt: skip
    others = [{**row, "cluster_id": ""}, {**row, "frame_no": 8, "kind": "deliver", "redelivered": True}]
    changed = [
        *({**row, name: "x"} for name in ("exchange", "routing_key", "message_id", "headers", "app_id")),
        *({**row, name: 7} for name in ("body_size", "body_hash", "priority", "timestamp")),
        {**row, "priority": None},
    ]
    found = content(arrow_table("messages", [row, *others, *changed])).tolist()
    assert len(set(found[:3])) == 1
    assert len(set(found)) == 1 + len(changed)
    assert content(pa.table({name: [row[name]] for name in row if row[name] is not None})).tolist() == found[:1]
    assert content(arrow_table("messages", [row, *others, *changed]).slice(4, 2)).tolist() == found[4:6]


def test_a_body_is_there_when_it_is_not_empty_and_its_hash_is_known():
    rows = [{"body_size": size, "body_hash": value} for size in (0, 1, None) for value in (0, 3, None)]
    assert has_body(arrow_table("messages", rows)).tolist() == [False] * 3 + [True, True] + [False] * 4
