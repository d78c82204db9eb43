"""How much a run of the tests does: `make test` holds some cases of each kind, `make test-all` all of them.

What belongs to the long run says so where it stands: whole tests by the mark `thorough`, cases by the mark `sampled`
(each so-manieth is in the short run), random examples by `examples`. Of all that only the long run holds, the short one
has a smaller form.
"""

import os
from collections import Counter

import pytest

THOROUGH = "AMQPSCOPE_THOROUGH" in os.environ


def examples(many: int) -> int:
    """Random examples of a property, of which a thorough run tries so many."""
    return many if THOROUGH else max(many // 5, min(many, 4))


def left(items: list[pytest.Item]) -> set[pytest.Item]:
    """The items that belong to the long run only."""
    cases: Counter[str] = Counter()
    found = set()
    for item in items:
        test = item.nodeid.split("[")[0]
        mark = item.get_closest_marker("sampled")
        if item.get_closest_marker("thorough") or (mark and cases[test] % mark.args[0]):
            found.add(item)
        cases[test] += 1
    return found
