"""`sandctl slo`: how late messages were, compared with the objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from sandctl.options.common import common_options, run
from sandctl.output.results import say, show_one
from sandctl.output.tables import print_table
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, SloReport

_BAR_CHARS: Final = 30
_TOPICS_SHOWN: Final = 10


@click.command(short_help="Compare lateness of messages with the objective.")
@click.option("--node", metavar="NODE", help="Only messages that this node delivered.")
@click.option(
    "--check", is_flag=True, help="Exit with 1 if the error budget is used up or a message was delivered early."
)
@common_options
def slo(node: str | None, check: bool) -> None:
    """Compare how late messages were delivered with the nodes' objective.

    It shows, for the time of `slo.window`: the share of messages delivered within `slo.lateness`, the rest of the error
    budget, and the burn rate. The nodes' clocks measure all this, so it also shows whether they are trusted.
    docs/slo.md says which messages count.

    \b
      sandctl slo
      sandctl slo --node node1 -o json
      sandctl slo --check
    """

    async def fetch(client: Client) -> SloReport:
        return await client.admin.slo(node=node)

    found = run(fetch)
    if settings().output == "table":
        _tell(found)
    else:
        record = found._asdict()
        record["histogram"] = [{"up_to_ms": bound, "deliveries": count} for bound, count in found.histogram]
        show_one(record)
    if check and (found.early or (found.budget_left is not None and found.budget_left < 0)):
        raise SystemExit(1)


def _tell(found: SloReport) -> None:
    from sandq.model.times import format_duration, format_instant

    lateness, window = format_duration(found.lateness_ms), format_duration(found.window_ms)
    rows: list[tuple[str, str]] = [
        (
            "promise",
            f"{_percent(found.target)} within {lateness}, over {window}",
        ),
        ("counted since", format_instant(found.since_ms)),
        ("deliveries", f"{found.deliveries:,}"),
        ("late", f"{found.late:,}"),
        ("in time", "-" if found.in_time is None else _percent(found.in_time)),
        ("budget left", "-" if found.budget_left is None else f"{found.budget_left * 100:.1f}%"),
        *[(f"burn rate, {over}", "-" if rate is None else f"{rate:.2f}") for over, rate in found.burn_rates.items()],
        ("early", str(found.early)),
        ("proven", "yes" if found.is_proven else "no"),
    ]
    width = max([len(name) for name, _ in rows])
    for name, value in rows:
        say(f"{name:{width}}  {value}")
    for doubt in found.doubts:
        say(f"  {doubt}")
    if found.deliveries:
        say("")
        _print_histogram(found.histogram)
    late = [row for row in found.topics if row["late"]][:_TOPICS_SHOWN]
    if late:
        say("\nmost late, since the nodes were started:")
        table = [[row["topic"], f"{row['late']:,}", f"{row['deliveries']:,}"] for row in late]
        print_table(table, ["TOPIC", "LATE", "OF"])


def _print_histogram(histogram: Sequence[tuple[float | None, int]]) -> None:
    """Return the buckets that are not empty, and the ranges between them."""
    filled = [at for at, (_, count) in enumerate(histogram) if count]
    most = max([count for _, count in histogram])
    table: list[list[Any]] = []
    for bound, count in histogram[filled[0] : filled[-1] + 1]:
        label = "more" if bound is None else f"{bound:g} ms"
        table.append([label, f"{count:,}", "#" * -(-count * _BAR_CHARS // most)])
    print_table(table, ["UP TO", "DELIVERIES", ""])


def _percent(share: float) -> str:
    return f"{share * 100:.4f}".rstrip("0").rstrip(".") + "%"
