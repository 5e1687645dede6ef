from tests.support.stopped_time import loop_clock

__all__ = ["loop_clock"]
