"""Spark looks for data sources in packages of such names: `spark.read.format("amqpscope")` needs no import."""

from amqpscope.pipelines.spark.source import Captures as DefaultSource  # noqa: F401 - Spark takes it by this name
