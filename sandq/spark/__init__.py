"""The Spark integration: `source` reads topics, `sink` writes to them, `jobs` are complete programs.

It needs pyarrow. Only some modules import pyspark, so that the others can be used and tested without it. This module
imports nothing: a worker that reads one partition loads only the modules that it needs.
"""
