"""The forty questions of docs/questions.md: each text has the same rows in DuckDB, Spark and Polars."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from amqpscope.pipelines.relations import database
from tests.pipelines.analyzed import statistics

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
FOUND = re.findall(r"### (\d+)\. ([^\n]*)\n\n```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SILENT = {2, 3, 4, 6, 23, 28, 30}
"""Questions to which the demo has no answer."""


def answer(text: str) -> pa.Table:
    with database.connect() as connection:
        for name, rows in statistics("demo").items():
            connection.register(name, rows)
        return connection.sql(text).to_arrow_table()


def test_there_are_forty() -> None:
    assert [int(number) for number, _, _ in FOUND] == list(range(1, 41))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("number", "text"), [(int(number), text) for number, _, text in FOUND])
def test_each_has_an_answer_or_the_demo_has_none(number: int, text: str) -> None:
    assert (number in SILENT) == (len(answer(text)) == 0)
    ordered = "order by" in text or number == 1
    assert ordered, "rows come in an order"


def test_spark_has_the_same_answers(spark: Any) -> None:
    tables = {name: spark.createDataFrame(rows) for name, rows in statistics("demo").items()}
    for number, question, text in FOUND:
        named = re.sub(r"\b(from|join)\s+([a-z_]+)", r"\1 {\2}", text)
        used = {name: rows for name, rows in tables.items() if f"{{{name}}}" in named}
        wanted = answer(text)
        found = spark.sql(named, args=None, **used).toArrow().cast(wanted.schema)
        assert found.to_pylist() == wanted.to_pylist(), (number, question)


def test_polars_has_the_same_answers(demo_statistics: Path) -> None:
    """Over the files that `analyze` writes, as the page says."""
    names = statistics("demo")
    tables = pl.SQLContext({name: pl.scan_parquet(f"{demo_statistics}/{name}/*.parquet") for name in names})
    for number, question, text in FOUND:
        wanted = answer(text)
        found = tables.execute(text).collect().to_arrow().cast(wanted.schema)
        assert found.to_pylist() == wanted.to_pylist(), (number, question)
