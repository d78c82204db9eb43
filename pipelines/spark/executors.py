"""The executors of a cluster, which register one after the other when a session has begun."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

PARALLELISM = "spark.default.parallelism"
"""Setting that says how work is divided, whatever executors there are."""
MOST_S = 30
"""Seconds that are waited at most; work may begin without executors, and waits for them in Spark."""
SETTLED_S = 2
"""Seconds in which none registers, after which no more are expected."""
LOOK_S = 0.1


def wait(spark: SparkSession) -> None:
    """Wait until the executors of a new session have registered: work is divided by their cores.

    Where the settings say how many there are, all of them are waited for; with dynamic allocation, which starts
    executors for work that waits already, those that it begins with.

    Args:
        spark: the session, on whatever master.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") or context.getConf().contains(PARALLELISM):
        return
    settings: dict[str, str] = dict(context.getConf().getAll())
    status = context._jsc.sc().getExecutorMemoryStatus
    gathered(lambda: int(status().size()) - 1, expected(settings))  # one is the driver


def expected(settings: Mapping[str, str]) -> int | None:
    """Return how many executors a session begins with, by Spark's settings; None: they do not say."""
    given = settings.get("spark.executor.instances")
    if settings.get("spark.dynamicAllocation.enabled") != "true":
        return None if given is None else int(given)
    named = (settings.get(f"spark.dynamicAllocation.{each}Executors") for each in ("initial", "min"))
    return max(int(each or 0) for each in (given, *named))


def gathered(count: Callable[[], int], wanted: int | None) -> int:
    """Return how many executors have registered when those that are expected have, or no more come.

    Args:
        count: returns how many have registered.
        wanted: how many are expected; None: not known.
    """
    begun = changed = time.monotonic()
    found = count()
    while wanted is None or found < wanted:
        now = time.monotonic()
        if now - begun >= MOST_S or (found and wanted is None and now - changed >= SETTLED_S):
            break
        time.sleep(LOOK_S)
        if (there := count()) != found:
            found, changed = there, time.monotonic()
    return found
