import re

from amqpscope.spec import findings as rules
from tests.pipelines.analyzed import HEALTHY
from tests.tickets import TICKETS
from tests.tickets.recall import PAGE, Said, judged, near, own, page

ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (?:(\d+) of (\d+)|-) \|", re.MULTILINE)


def right() -> dict[str, Said]:
    """Captures in which exactly what must be found is found."""
    return {
        name: Said([each["first"]] * bool(each["first"]) + each.get("also", []), each.get("notes", []))
        for name, each in TICKETS.items()
    } | {f"healthy {stem}": Said([], []) for stem in HEALTHY}


def test_the_page_has_a_row_for_each_rule_and_counts_its_tickets() -> None:
    rows = {code: int(of or 0) for code, _, of in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert rows == {rule.code: len(own(rule.code)) for rule in rules.load()}


def test_a_near_miss_is_none_of_the_rules_tickets() -> None:
    assert not {
        rule.code: own(rule.code) & near(rule.code) for rule in rules.load() if own(rule.code) & near(rule.code)
    }


def test_what_is_wrong_lowers_its_count() -> None:
    perfect = {line.code: line for line in judged(right())}
    assert all(part[0] == part[1] for line in perfect.values() for part in line[1:])
    said = right()
    said["slow_consumer"] = Said(["con-poll"], [])
    said["busy_consumer"] = Said(["con-slow"], [])
    lines = {line.code: line for line in judged(said)}
    assert lines["con-slow"].found == (perfect["con-slow"].found[0] - 1, perfect["con-slow"].found[1])
    assert lines["con-slow"].near[0] == lines["con-slow"].near[1] - 1
    assert lines["con-poll"].elsewhere[0] == lines["con-poll"].elsewhere[1] - 1


def test_a_rule_with_few_tickets_is_unproven() -> None:
    shown = page(judged(right()))
    for code, state in (("con-hoard", "unproven"), ("con-poll", "")):
        firing, misses = len(own(code)), len(near(code))
        others = len(right()) - firing - misses
        row = f"| `{code}` | {firing} of {firing} | {misses} of {misses} | {others} of {others} | {state} |"
        assert row in shown
