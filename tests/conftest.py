"""What all tests share: how hypothesis runs, and to which part of the suite a test belongs."""

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

import amqpscope
from amqpscope.dissector.kernels import kernel
from tests import oracles
from tests.garbage import free
from tests.thorough import THOROUGH, examples, left

settings.register_profile(
    "default",
    derandomize="CI" in os.environ,
    deadline=None,
    max_examples=examples(50),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")

HANDLED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Signals that tests send to programs, and what Python does with them; under nohup, or in the background of a script,
programs inherit that they are ignored."""
for each, handler in HANDLED.items():
    if signal.getsignal(each) == signal.SIG_IGN:
        signal.signal(each, handler)

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of JVMs that run for seconds: no optimizing compiler, and none that collects garbage in parallel."""


FIRST = Path(__file__).parent / "tickets"
"""Whichever module comes last runs beside nothing for as long as it takes: that of tickets is the longest."""
DEMO = Path(__file__).parent / "captures" / "demo.pcap"


@pytest.fixture(scope="session")
def demo_statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of statistics of the demo, which tests only read."""
    folder: Path = amqpscope.analyze(DEMO, tmp_path_factory.mktemp("demo") / "stats")
    return folder


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tables` of the demo, and with `stats` of these, which tests only read."""
    folder = tmp_path_factory.mktemp("demo")
    amqpscope.dissect(DEMO, folder / "tables")
    amqpscope.analyze(folder / "tables", folder / "stats")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what shows by its parameters and fixtures that it runs compiled kernels, or Spark; pick what a run holds."""
    for item in items:
        if isinstance(item, pytest.Function):
            if hasattr(item, "callspec") and item.callspec.params.get("compiled") is True:
                item.add_marker("compiled")
            if "spark" in item.fixturenames:
                item.add_marker("spark")
    items.sort(key=lambda item: FIRST not in item.path.parents)
    if not THOROUGH and not any("::" in each for each in config.args):  # who names a test wants it
        later = left(items)
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over all that is there before the first test, and come seldom from then on."""
    free()
    gc.set_threshold(50_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let nothing compile kernels, load compiled ones, or start Spark, but tests and fixtures of tests marked so.

    Without the mark no kernel is cached, either: what a test runs must not depend on what was run before it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not item.get_closest_marker("compiled"):
            patch.setattr(kernel, "_ready", {})
            patch.setattr(kernel, "_made_ready", _refuse)
            patch.setattr(kernel, "is_cached", lambda folder=None: False)
        if item.get_closest_marker("spark"):
            patch.setenv("SPARK_SUBMIT_OPTS", BRIEF)
        else:
            patch.setenv("JAVA_HOME", os.devnull)
        patch.setenv("COLUMNS", "100")  # whatever the terminal has
        return (yield)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Free what a test with compiled kernels leaves."""
    if item.get_closest_marker("compiled"):
        free()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("oracles"):
        oracles.look_for(mark.args)


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("a compiled kernel, in a test that is not marked `compiled`")
