"""The Spark pipeline's parts; they need pyarrow, and what is Spark's own stands in modules of its own.

Nothing is imported here: a worker that reads one partition loads what that needs.
"""
