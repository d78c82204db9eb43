import pytest

from amqpscope.dashboards.tables import Tables
from tests.dashboards import synthetic


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of the shop."""
    return Tables(*synthetic.shop(tmp_path_factory.mktemp("shop")))
