"""`sandctl topic forecast`: how many messages are due when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.output.records import when
from sandctl.output.results import show_one
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Forecast

UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000}
_BAR_CHARS = 40
_EMPTY_ROWS = 3
"""Maximum number of consecutive empty buckets that are shown. Longer runs are summarized."""
_BLOCKS = "▏▎▍▌▋▊▉█"


@click.command(short_help="Show how many messages are due in each time unit.")
@topic_argument("name")
@click.option(
    "--unit", type=click.Choice(list(UNITS_MS)), default="minute", show_default=True, help="Width of a bucket."
)
@click.option("--count", type=click.IntRange(1, 3600), default=60, show_default=True, help="Number of buckets.")
@common_options
def forecast(name: str, unit: str, count: int) -> None:
    """Show how many messages of the topic NAME become due in each second, minute or hour from now on.

    It includes messages that schedules will create in that time.

    \b
      sandctl topic forecast orders
      sandctl topic forecast orders --unit hour --count 48
    """

    async def work(client: Client) -> Forecast:
        return await client.admin.forecast(name, unit=unit, count=count)

    found = run(work)
    if settings().output != "table":
        buckets = [{"start": when(start_ms), "messages": messages} for start_ms, messages in found.buckets]
        record = {"now": when(found.now_ms), "unit": unit, "count": count, "buckets": buckets, "later": found.later}
        scheduled = [{"start": when(start_ms), "messages": messages} for start_ms, messages in found.scheduled]
        show_one({**record, "scheduled": scheduled, "complete": found.is_complete})
        return
    for line in forecast_lines(found.together(), UNITS_MS[unit], found.now_ms, found.later):
        click.echo(line)
    print_scheduled(sum(messages for _, messages in found.scheduled), found.is_complete)


def print_scheduled(messages: int, is_complete: bool) -> None:
    """Print how many of the shown messages do not exist yet, because schedules will create them."""
    if messages or not is_complete:
        more = "" if is_complete else ", and more, which are too many to count"
        click.echo(f"of these {messages:,} by schedules, which will create them later{more}", err=True)


def forecast_lines(buckets: Sequence[tuple[int, int]], unit_ms: int, now_ms: int, later: int) -> Iterator[str]:
    """Yield a line for each bucket, up to the last one with messages; the length of a bar is its share of the fullest
    one."""
    counts = dict(buckets)
    most = max(counts.values(), default=0)
    width = max(len(f"{count:,}") for count in (most, later))
    start_ms = now_ms - now_ms % unit_ms
    for bucket_ms, count in buckets:
        missing = (bucket_ms - start_ms) // unit_ms
        if missing > _EMPTY_ROWS:
            yield f"{'...':<24}  {0:>{width}}"
        else:
            for empty in range(missing):
                yield f"{when(start_ms + empty * unit_ms)}  {0:>{width}}"
        yield f"{when(bucket_ms)}  {count:>{width},}  {bar(count, most)}"
        start_ms = bucket_ms + unit_ms
    yield f"{'later':<24}  {later:>{width},}"


def bar(count: int, most: int) -> str:
    """Return a bar for a count; never empty if the count is not 0."""
    eighths = max(1, count * _BAR_CHARS * 8 // most)
    whole, rest = divmod(eighths, 8)
    return _BLOCKS[-1] * whole + (_BLOCKS[rest - 1] if rest else "")
