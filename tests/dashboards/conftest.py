from pathlib import Path

import pytest

import amqpscope
from amqpscope.dashboards.tables import Tables
from tests.dashboards import synthetic


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of the shop."""
    return Tables(*synthetic.shop(tmp_path_factory.mktemp("shop")))


@pytest.fixture(scope="session")
def demo_statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of statistics of the demo, which tests only read."""
    capture = Path(__file__).parents[1] / "captures" / "demo.pcap"
    folder: Path = amqpscope.analyze(capture, tmp_path_factory.mktemp("demo") / "stats")
    return folder
