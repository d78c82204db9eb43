import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dashboards import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "\N{EN DASH}"), (0, "0 ns"), (999, "999 ns"), (1000, "1 µs"),
        (412_300, "412 µs"), (1_234_567, "1.23 ms"),
        (999_499, "999 µs"), (999_600, "1 ms"), (12_345_678_900, "12.3 s"), (119_000_000_000, "119 s"),
        (200_000_000_000, "3 min 20 s"), (3_600_000_000_000, "1 h"), (8_100_000_000_000, "2 h 15 min"),
        (4 * 86_400_000_000_000, "4.0 d"), (-1500, "\N{MINUS SIGN}1.5 µs"),
    ],
)  # fmt: skip
def test_duration(ns: int | None, text: str) -> None:
    assert units.duration(ns) == text


def test_sizes_counts_shares() -> None:
    assert units.size(812) == "812 B"
    assert units.size(1_230_000_000) == "1.23 GB"
    assert units.count(1234567) == "1,234,567"
    assert units.share(1, 3) == "33.3 %"
    assert units.share(1, 100_000) == "< 0.1 %"
    assert units.share(99_999, 100_000) == "> 99.9 %"
    assert units.share(5, 5) == "100 %"


def test_hidden_characters_are_spelled_out() -> None:
    assert units.visible("a\u202eb\x00\u2028é") == "a\\u{202e}b\\u{0}\\u{2028}é"
    assert units.visible("שלום") == "שלום"


@given(st.text(), st.integers(8, 60))
def test_visible_text_has_no_hidden_characters_and_is_short(text: str, longest: int) -> None:
    shown = units.visible(text, longest)
    assert len(shown) <= longest
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


@given(st.integers(0, 4 * 10**18), st.integers(1, 10**17), st.integers(2, 10))
def test_ticks_are_few_inside_and_in_order(low: int, span: int, most: int) -> None:
    ticks, title = units.time_ticks(low, low + span, most)
    assert title
    assert len(ticks) <= most + 1
    assert all(low <= t <= low + span for t, _ in ticks)
    assert [t for t, _ in ticks] == sorted({t for t, _ in ticks})
    assert len({text for _, text in ticks}) == len(ticks) or span > 86_400 * 10**9


def test_clock_has_the_digits_that_a_step_needs() -> None:
    noon = 12 * 3600 * 10**9 + 34_500_000
    assert units.clock(noon, 10**9) == "12:00:00"
    assert units.clock(noon, 10**8) == "12:00:00.0"
    assert units.clock(noon, 1000) == "12:00:00.034500"
    assert units.instant(0, 10**9) == "1970-01-01 00:00:00"
    assert units.instant(9 * 10**30) == f"{9 * 10**30} ns"
