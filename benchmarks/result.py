"""What was measured, beside the goal, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Goal:
    """`value` is to be reached (`at_least`) or not to be passed."""

    value: float
    unit: str
    at_least: bool = True

    def ratio(self, measured: float) -> float:
        """1 or more: reached."""
        if self.at_least:
            return measured / self.value
        return self.value / measured if measured > 0 else float("inf")

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.value:,.0f} {self.unit}"


@dataclass(slots=True)
class Result:
    """One measurement. `value` is what the goal is about, in `unit`."""

    name: str
    what: str
    driver: str
    """"raw": sockets and prepared frames; "client": the Python client."""
    messages: int
    value: float
    unit: str
    goal: Goal | None = None
    cpu_us: float | None = None
    """The node's CPU per message, microseconds, all threads."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.goal.ratio(self.value) if self.goal is not None else None

    def record(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        found["goal"] = self.goal.value if self.goal is not None else None
        found["ratio"] = self.ratio
        return found


def as_json(machine: dict[str, Any], results: Sequence[Result]) -> str:
    return json.dumps({"machine": machine, "results": [result.record() for result in results]}, indent=2)


def print_table(console: Console, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """For people."""
    table = Table(title_justify="left", title=", ".join(f"{name} {value}" for name, value in machine.items()))
    table.add_column("what")
    table.add_column("driver")
    for name in ("messages", "measured", "node CPU us/msg", "goal", "reached"):
        table.add_column(name, justify="right")
    table.add_column("besides")
    for result in results:
        ratio = result.ratio
        table.add_row(
            f"{result.name}\n[dim]{result.what}[/dim]",
            result.driver,
            f"{result.messages:,}",
            f"{_short(result.value)} {result.unit}",
            "" if result.cpu_us is None else f"{result.cpu_us:.2f}",
            "" if result.goal is None else str(result.goal),
            "" if ratio is None else f"[{'green' if ratio >= 1 else 'red'}]{ratio:.2f}[/]",
            "\n".join(f"{name} {_short(value)}" for name, value in result.details.items()),
        )
    console.print(table)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
