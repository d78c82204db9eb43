import re
from collections import Counter

from amqpscope.spec import findings as rules
from tests.pipelines.analyzed import HEALTHY
from tests.tickets import TICKETS
from tests.tickets.recall import PAGE, judged, page

ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (?:(\d+) of (\d+)|-) \|", re.MULTILINE)


def right() -> dict[str, list[str]]:
    """Captures in which exactly what must be found is found."""
    return {name: [each["first"]] * bool(each["first"]) for name, each in TICKETS.items()} | {
        f"healthy {stem}": [] for stem in HEALTHY
    }


def test_the_page_has_a_row_for_each_rule_and_counts_its_tickets() -> None:
    rows = {code: int(of or 0) for code, _, of in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    tickets = Counter(each["first"] for each in TICKETS.values())
    assert rows == {rule.code: tickets[rule.code] for rule in rules.load()}


def test_what_is_wrong_lowers_its_count() -> None:
    perfect = {line.code: line for line in judged(right())}
    assert all(part[0] == part[1] for line in perfect.values() for part in line[1:])
    said = right()
    said["slow_consumer"] = ["con-poll"]
    said["busy_consumer"] = ["con-slow"]
    lines = {line.code: line for line in judged(said)}
    assert lines["con-slow"].found == (perfect["con-slow"].found[0] - 1, perfect["con-slow"].found[1])
    assert lines["con-slow"].twins[0] == lines["con-slow"].twins[1] - 1
    assert lines["con-poll"].elsewhere[0] == lines["con-poll"].elsewhere[1] - 1


def test_a_rule_with_few_tickets_is_unproven() -> None:
    shown = page(judged(right()))
    others = len(right()) - 2  # the ticket and its twin
    assert f"| `con-poll` | 1 of 1 | 1 of 1 | {others} of {others} | unproven |" in shown
    assert re.search(r"`cap-gaps` \| - \| - \| (\d+) of \1 \| no ticket", shown)
