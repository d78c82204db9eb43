"""The page in headless Chromium: what people do with it works, by pointer and by keys, on screens of any width."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import amqpscope
from amqpscope.dashboards import slowest, units
from amqpscope.dashboards.tables import locate
from tests.dashboards import synthetic
from tests.thorough import THOROUGH
from tests.tickets import FOLDER as TICKETS

pytestmark = pytest.mark.oracles("chromium")
OFF = ("background-networking", "component-update", "sync", "gpu", "quic")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - with its own program, only here

    with sync_playwright() as started:
        arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{each}" for each in OFF)]
        made = started.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield made
        made.close()


@pytest.fixture(scope="module")
def page_file(demo_statistics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return amqpscope.report(demo_statistics, tmp_path_factory.mktemp("page") / "page.html")


class Opened:
    """A page in the browser, with all errors that it reported."""

    def __init__(self, browser: Any, file: Path, width: int = 1400, **options: Any) -> None:
        self.page = browser.new_context(viewport={"width": width, "height": 900}, **options).new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready]", state="attached")


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Any]:
    made = Opened(browser, page_file)
    yield made.page
    assert made.errors == []
    made.page.context.close()


def test_a_finding_is_shown_where_it_happened(opened: Any) -> None:
    opened.click("#party-broker ~ ol button.show >> nth=0")
    title = opened.inner_text(".messages h3")
    assert re.search(r"messages? from 09:49:03\.39\d+ to 09:49:05\.3", title)
    left, _, width, _ = map(float, opened.get_attribute("#lanes .plot svg >> nth=0", "viewBox").split())
    assert 0 < left < left + width < 100_000
    assert opened.is_visible("text=rows in the interval shown above >> nth=0")
    opened.click("#lanes .hint button")
    assert opened.get_attribute("#lanes .plot svg >> nth=0", "viewBox") == "0 0 100000 1000"


def test_the_cursor_reads_all_lanes(opened: Any) -> None:
    opened.hover("#lanes .plot >> nth=1", position={"x": 400, "y": 40})
    shown = opened.inner_text(".readout")
    assert re.match(r"09:49:0\d\.\d+", shown) and "published" in shown and "warehouse-1 unacked 4" in shown
    assert opened.locator(".cursor:visible").count() == 4


def test_dragging_zooms_and_clicking_lists(opened: Any) -> None:
    box = opened.locator("#lanes .plot >> nth=0").bounding_box()
    middle = box["y"] + box["height"] / 2
    opened.mouse.move(box["x"] + 0.5 * box["width"], middle)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 0.75 * box["width"], middle, steps=4)
    opened.mouse.up()
    left, _, width, _ = map(float, opened.get_attribute("#lanes .plot svg >> nth=2", "viewBox").split())
    assert (left, width) == pytest.approx((50_000, 25_000), abs=500)
    opened.mouse.click(box["x"] + 0.9 * box["width"], middle)
    assert opened.locator(".messages tbody tr").count() > 0
    assert "frame.number" in opened.inner_text(".messages tbody tr >> nth=0")


def test_keys_do_what_the_pointer_does(opened: Any) -> None:
    opened.locator("#lanes").focus()
    for key in ("ArrowRight", "ArrowRight", "+", "Enter"):
        opened.keyboard.press(key)
    assert opened.is_visible(".messages")
    assert opened.get_attribute("#lanes .plot svg >> nth=0", "viewBox") != "0 0 100000 1000"
    opened.keyboard.press("0")
    assert opened.get_attribute("#lanes .plot svg >> nth=0", "viewBox") == "0 0 100000 1000"


def test_tables_sort_search_and_page(opened: Any) -> None:
    assert opened.locator("#queues tbody tr").count() == 8
    opened.click("#queues th:has-text('longest') button")
    assert opened.inner_text("#queues tbody tr:first-child td:first-child") == "carts"
    opened.fill("#queues input", "session")
    assert "1 to 8 of 46" in opened.inner_text("#queues .controls")
    opened.click("#queues .controls button:has-text('next')")
    assert "9 to 16 of 46" in opened.inner_text("#queues .controls")


@pytest.mark.parametrize("width", [390, 768, 1400, 2560])
def test_nothing_lies_off_the_screen(browser: Any, page_file: Path, width: int) -> None:
    made = Opened(browser, page_file, width)
    assert made.page.evaluate("document.documentElement.scrollWidth") <= width
    made.page.context.close()


def test_long_names_lie_on_a_phone_as_well(browser: Any, tmp_path: Path) -> None:
    page = amqpscope.report(TICKETS / "delivery_limit.pcap", tmp_path / "page.html")
    made = Opened(browser, page, 360)
    assert made.page.evaluate("document.documentElement.scrollWidth") <= 360
    made.page.context.close()


def test_marks_lie_where_they_belong(opened: Any) -> None:
    """Those of a staircase are spread over its time, as their places say, also where no lane is zoomed."""
    left = "marks => marks.map((m) => m.offsetLeft / m.closest('.plot').clientWidth)"
    shown = opened.eval_on_selector_all("#staircase .plot i", left)
    expected = opened.eval_on_selector_all(
        "#staircase .plot i", "marks => marks.map((m) => +m.style.getPropertyValue('--at'))"
    )
    assert len(shown) > 5 and shown == pytest.approx(expected, abs=0.01) and max(shown) > 0.5


def test_without_scripts_pictures_and_first_rows_are_there(browser: Any, page_file: Path) -> None:
    made = Opened(browser, page_file, java_script_enabled=False)
    assert made.page.locator("#lanes path.dots").count() >= 4
    assert made.page.locator("#queues tbody tr").count() == 8
    assert made.page.is_visible("text=The broker blocked 3 publishing connections")
    made.page.context.close()


CONTRAST = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((c) => {
        const part = c / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    const light = (colour) => { const [r, g, b] = channels(colour); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    const ratio = (colour) => {
        const one = light(colour);
        return (Math.max(one, paper) + 0.05) / (Math.min(one, paper) + 0.05);
    };
    const weak = [];
    const texts = "p, dt, dd, h1, h2, h3, td, th, li, a, button, small, figcaption, .y span, .x span";
    for (const element of document.querySelectorAll(texts)) {
        const text = element.textContent.trim();
        if (!text || !element.checkVisibility() || element.disabled) continue;
        if (ratio(getComputedStyle(element).color) < 4.5) weak.push(element.className + ": " + text.slice(0, 40));
    }
    for (const mark of document.querySelectorAll("path.line, path.dots")) {
        if (ratio(getComputedStyle(mark).stroke) < 3) weak.push("mark " + mark.getAttribute("stroke"));
    }
    return [...new Set(weak)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_marks_can_be_told_from_the_paper(browser: Any, page_file: Path, scheme: str) -> None:
    made = Opened(browser, page_file, color_scheme=scheme)
    assert made.page.evaluate(CONTRAST) == []
    made.page.context.close()


def test_on_paper_tables_have_their_heads_and_nothing_is_folded(browser: Any, page_file: Path) -> None:
    made = Opened(browser, page_file)
    heads = made.page.locator("thead th").count()
    made.page.emulate_media(media="print")
    hidden = made.page.evaluate("""() => [...document.querySelectorAll("thead th:not(.filter)")].filter((each) =>
        each.textContent.trim() && (each.querySelector("button") ?? each).getClientRects().length === 0)
        .map((each) => each.textContent)""")
    folded = made.page.evaluate("""() => [...document.querySelectorAll("details:not([open]) table")].filter((each) =>
        each.getBoundingClientRect().height === 0 || !each.checkVisibility({contentVisibilityAuto: true})).length""")
    assert heads > 50 and (hidden, folded) == ([], 0)
    made.page.context.close()


UNNAMED = """() => [...document.querySelectorAll("svg, canvas, table, figure, input, button")].filter((each) => {
    if (each.closest("[aria-hidden=true], [role=img]") && !each.matches("[role=img]")) return false;
    if (!each.checkVisibility()) return false;
    const ids = (each.getAttribute("aria-labelledby") ?? "").split(" ");
    const by = ids.map((id) => document.getElementById(id)?.textContent);
    const inner = each.matches("table") ? each.caption?.textContent : each.matches("figure, svg")
        ? each.querySelector("figcaption, title, h3, [role=img][aria-label]")?.textContent
            || each.querySelector("[role=img][aria-label]")?.getAttribute("aria-label")
        : each.textContent || each.labels?.[0]?.textContent || each.title;
    return !(each.getAttribute("aria-label") || by.join("") || inner || "").trim();
}).map((each) => `${each.tagName} ${each.id || each.className?.baseVal || each.className || ""} in ${
    each.closest("section, details, figure")?.id || each.closest("section")?.id || each.parentElement?.className}`)"""


def test_all_that_is_seen_has_a_name_for_those_who_listen(browser: Any, page_file: Path) -> None:
    made = Opened(browser, page_file)
    made.page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert made.page.evaluate(UNNAMED) == []
    made.page.context.close()


def test_hostile_names_do_nothing(browser: Any, tmp_path: Path) -> None:
    hostile = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>'
    tables, stats = synthetic.shop(tmp_path, 60)
    page = tmp_path / "page.html"
    rows = [{"queue": hostile, "server": hostile, "vhost": "", "outs": n, "consumer_tag": hostile} for n in range(40)]
    synthetic.write(stats, "queues", rows)
    amqpscope.report([tables, stats], page)
    made = Opened(browser, page)
    asked: list[str] = []
    made.page.on("dialog", lambda dialog: asked.append(dialog.message))
    made.page.click("#queues .controls button:has-text('next')")
    made.page.fill("#queues input", "onerror")
    assert made.page.locator("#queues img, #queues script:not([type])").count() == 0 and asked == []
    assert made.errors == []
    made.page.context.close()


WRITTEN = """async ([caption, step]) => {
  const table = [...document.querySelectorAll("table")].find((each) => each.caption?.textContent === caption);
  const { forms, columns } = await unpacked(table.parentElement.querySelector("script"));
  const packets = columns[forms.indexOf("packets")];
  const texts = (values, form) => values.map((value, row) => written(value, form, packets[row]));
  return columns.map((values, at) => texts(values, forms[at]).filter((_, row) => row % step == 0));
}"""
DURATIONS = [0, 7, 999, 1000, 9_994, 123_456, 999_400_000, 1_234_567_890, 119_400_000_000, 119_600_000_000, 200 * 10**9,
             3_600 * 10**9, 49 * 3_600 * 10**9, -5_000]  # fmt: skip


def test_rows_that_the_script_writes_are_those_of_the_page(
    opened: Any, demo_statistics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that are made in the browser, of all rows behind the first page, are those that Python makes."""
    monkeypatch.setattr(slowest, "PAGE", 10**6)
    long = [grid for grid in slowest.section(locate([demo_statistics])).parts if len(grid.rows) > 8]
    assert len(long) >= 2
    for grid in long:
        step = 1 if THOROUGH else max(1, len(grid.rows) // 200)
        shown = opened.evaluate(WRITTEN, [grid.caption, step])
        texts = [[units.visible(cell.text, 240) for cell in row] for row in grid.rows[8::step]]
        assert list(map(list, zip(*shown, strict=True))) == texts, grid.caption
    assert opened.evaluate("(all) => all.map(duration)", DURATIONS) == list(map(units.duration, DURATIONS))
