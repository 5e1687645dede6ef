"""sandq: a partitioned topic broker that delivers every message at the moment its producer chose."""

__version__ = "0.1.0"
