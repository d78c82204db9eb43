"""Subscriptions to streams on the page, from tables whose numbers are known."""

from pathlib import Path

import numpy as np
import pytest

from amqpscope.dashboards import page, staircase, streams
from amqpscope.dashboards.tables import Tables
from tests.dashboards import synthetic

SECOND = synthetic.SECOND
START = synthetic.START
ONE = {"connection_id": 7, "subscription_id": 3, "subscription_epoch": 1, "stream": "orders", "consumer": "billing"}


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Ten chunks, one a second; from the sixth on the consumer grants no more and falls behind."""
    at = [START + i * SECOND for i in range(10)]
    synthetic.write(
        tmp_path,
        "stream_deliveries",
        [
            ONE | {"frame_no": i, "ts_ns": at[i], "records": 100, "age_ns": (i + 1) * 1000, "lag_records": 50 * i}
            for i in range(10)
        ],
        parts=3,
    )
    synthetic.write(
        tmp_path,
        "stream_credit",
        [ONE | {"frame_no": i, "ts_ns": at[i], "balance": max(5 - i, 0)} for i in range(10)],
    )
    synthetic.write(
        tmp_path,
        "flow_control",
        [
            {"connection_id": 7, "subscription_id": 3, "cause": "stream-credit", "evidence": "proven"}
            | {"start_ts_ns": at[5], "end_ts_ns": at[9], "duration_ns": 4 * SECOND}
        ],
    )
    synthetic.write(
        tmp_path,
        "confirms",
        [
            {"connection_id": 7, "publisher_id": 1, "publisher_epoch": 1, "publish_seq": i, "outcome": "ack"}
            | {"publish_ts_ns": at[i], "confirm_ts_ns": at[i] + SECOND // 2, "latency_ns": SECOND // 2}
            for i in range(10)
        ],
    )
    return Tables(tmp_path, tmp_path)


def test_subscriptions_are_summed(tables: Tables) -> None:
    (row,) = streams.subscriptions(tables)
    assert (row["chunks"], row["records"], row["oldest_ns"], row["lag"]) == (10, 1000, 10_000, 450)
    assert (row["waits"], row["longest_ns"]) == (1, 4 * SECOND)


def test_the_course_has_the_worst_of_each_step(tables: Tables) -> None:
    (row,) = streams.subscriptions(tables)
    found = streams.course(tables, row)
    assert (np.nanmax(found.age_ns), np.nanmax(found.lag), np.nanmin(found.credit)) == (10_000, 450, 0)
    assert found.credit[0] == 5
    assert np.count_nonzero(found.credit == 0) == 5


def test_a_publisher_has_a_staircase(tables: Tables) -> None:
    (channel,) = staircase.channels(tables)
    assert (channel.publisher_id, channel.channel, channel.publishes) == (1, None, 10)
    stairs = staircase.query(tables, channel)
    assert (stairs.published[-1], stairs.answered[-1]) == (9, 9)


def test_the_page_shows_streams_where_there_are_some(tables: Tables, shop: Tables) -> None:
    text = page.render(tables)
    assert "Subscription 3 to orders" in text
    assert "Publishes on publisher 1 of" in text
    assert 'id="streams"' not in page.render(shop)
