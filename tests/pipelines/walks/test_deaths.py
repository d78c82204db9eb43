import json
from typing import Any

import pytest

from amqpscope.pipelines.activity.deaths import Deaths
from tests.pipelines.scenario import Connection, arrow
from tests.pipelines.walks.properties import check_made, checked

REJECTED = {"queue": "work", "reason": "rejected", "exchange": "", "count": 3}
EXPIRED = {"queue": "later", "reason": "expired", "exchange": "", "count": 4}


def a_round_trip() -> tuple[Connection, list[dict[str, Any]]]:
    c = Connection()
    c.publish(1, headers=json.dumps({"x-death": [REJECTED]}))
    c.deliver(1)
    c.deliver(2, headers=json.dumps({"a": 1}))
    at = c.deliver(3, message_id="m", headers=json.dumps({"x-death": [EXPIRED, REJECTED]}))
    row = {"frame_no": at, "packet": at + 1, "message_id": "m", "queue": "work", "reason": "rejected", "exchange": ""}
    return c, [row | {"count": 4, "places": 2}]


def test_a_delivery_has_its_first_death_and_the_largest_count() -> None:
    check_made(Deaths, [a_round_trip(), a_round_trip()], "frame_no")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ('{"x-death": [', None),
        ('["x-death"]', None),
        ('{"x-death": 5}', None),
        ('{"x-death": [5, "a"]}', None),
        ('{"x-death": [{}]}', (None, None)),
        ('{"x-death": [{"queue": 1, "count": "many"}]}', (None, None)),
        ('{"x-death": [{"queue": "q", "count": -1}, {"queue": "p", "count": 99999999999999999999}]}', ("p", None)),
        ('{"x-death": ' + "[" * 100_000, None),
    ],
)
def test_hostile_headers_say_nothing(headers: str, expected: Any) -> None:
    c = Connection()
    c.deliver(1, headers=headers)
    found = [(row["queue"], row["count"]) for row in checked(Deaths, arrow([c]))]
    assert found == ([expected] if expected else [])
