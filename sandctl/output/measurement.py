"""The result of a benchmark, for people and programs. This module does not read the clock."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from sandctl.output.results import counted


class Samples:
    """A list of durations in signed microseconds, 8 bytes each."""

    def __init__(self) -> None:
        self._us = array("q")

    def add(self, us: int, count: int = 1) -> None:
        """Add a duration for `count` messages."""
        if count == 1:
            self._us.append(us)
        else:
            self._us.extend([us] * count)

    def __len__(self) -> int:
        return len(self._us)

    def record(self, *, signed: bool = False) -> dict[str, float]:
        """Return p50, p99 and max in milliseconds, by the nearest-rank method. With `signed`, also return the
        minimum."""
        if not self._us:
            return {}
        ordered = sorted(self._us)

        def at(percent: int) -> float:
            return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / 1000

        least = {"least_ms": ordered[0] / 1000} if signed else {}
        return {**least, "p50_ms": at(50), "p99_ms": at(99), "max_ms": ordered[-1] / 1000}

    def below_zero(self) -> int:
        """Return how many durations are negative."""
        return sum(us < 0 for us in self._us)


class Measured:
    """The results of one benchmark up to now."""

    def __init__(self, what: str, topic: str, size: int, wanted: int) -> None:
        self.what = what
        self.topic = topic
        self.size = size
        self.wanted = wanted
        self.messages = 0
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.samples = Samples()

    def record(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        record: dict[str, Any] = {
            "bench": self.what,
            "topic": self.topic,
            "messages": self.messages,
            "wanted": self.wanted,
            "size": self.size,
            "seconds": round(self.seconds, 6),
            "rate": round(self.messages / self.seconds, 3) if self.seconds > 0 else None,
            "cpu_us": round(self.cpu_s * 1e6 / self.messages, 3) if self.messages else None,
        }
        if self.what == "lateness":
            return record | {"lateness": self.samples.record(signed=True), "early": self.samples.below_zero()}
        return record | {"latency": self.samples.record()}

    def lines(self) -> Iterator[str]:
        """Return the result as text."""
        short = "" if self.messages == self.wanted else f" of {self.wanted:,}"
        noun = "message" if self.messages == self.wanted == 1 else "messages"
        yield f"{self.what}: {self.messages:,}{short} {noun} of {counted(self.size, 'byte')} in {self.seconds:.2f} s"
        if not self.messages or self.seconds <= 0:
            return
        rate = self.messages / self.seconds
        yield f"  rate      {rate:,.0f} messages/s, {rate * self.size / 1e6:,.1f} MB/s"
        yield f"  CPU       {self.cpu_s * 1e6 / self.messages:.1f} us a message, of this client"
        signed = self.what == "lateness"
        found = self.samples.record(signed=signed)
        name = {"lateness": "lateness", "produce": "latency", "consume": "ack"}[self.what]
        if found:
            parts = ", ".join(f"{key.removesuffix('_ms')} {ms:,.1f}" for key, ms in found.items())
            yield f"  {name:<8}  {parts} ms"
        if signed:
            yield f"  early     {self.samples.below_zero():,}"
