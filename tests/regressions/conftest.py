from tests.support.stopped_time import loop_clock, node_time

__all__ = ["loop_clock", "node_time"]
