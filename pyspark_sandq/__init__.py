"""How Spark finds the source by its name: it looks for `DefaultSource` in every top-level package named pyspark_*."""

from __future__ import annotations

from sandq.spark.datasource import SandqDataSource as DefaultSource

__all__ = ["DefaultSource"]
