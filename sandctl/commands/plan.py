"""`sandctl cluster plan`: estimate what a load needs, without asking a node."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import Final

import click

from sandctl.capacity import DELIVERED_US, GIB, MIB, PRODUCED_US, Load, Machine, Plan
from sandctl.capacity import plan as planned
from sandctl.options.common import options_of_all
from sandctl.options.times import DURATION, RATE
from sandctl.output.results import counted, say, show_one
from sandctl.settings import settings

_SIZE: Final = re.compile(r"([0-9]{1,15}) ?(B|KiB|MiB|GiB|TiB)?")
_UNITS: Final = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _size(context: click.Context, parameter: click.Parameter, text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise click.BadParameter(f'{text!r} is not a size: bytes, or text like "300" or "64GiB"')
    return int(match[1]) * _UNITS[match[2]]


@click.command(short_help="Estimate nodes, disk, memory and CPU for a load.")
@click.option("--rate", type=RATE, required=True, help="Messages a second, on average.")
@click.option(
    "--peak", type=float, default=2.0, show_default=True, help="The busiest second, as a multiple of the average."
)
@click.option(
    "--size", callback=_size, default="200", show_default=True, help="Bytes of value, key and headers of a message."
)
@click.option("--delay", type=DURATION, default="0", show_default=True, help="Average time until a message is due.")
@click.option("--kept", type=DURATION, default="0", show_default=True, help="How long a message stays after it is due.")
@click.option("--groups", type=int, default=1, show_default=True, help="Consumer groups that get each message.")
@click.option("--replicas", type=int, default=3, show_default=True)
@click.option(
    "--produced",
    type=click.Choice([*PRODUCED_US]),
    default="batched",
    show_default=True,
    help="How messages are produced.",
)
@click.option(
    "--delivered",
    type=click.Choice([*DELIVERED_US]),
    default="batched",
    show_default=True,
    help="How messages are acked.",
)
@click.option("--cores", type=float, default=2.0, show_default=True, help="Cores of each node.")
@click.option("--memory", callback=_size, default="4GiB", show_default=True, help="Memory of each node.")
@click.option("--disk", callback=_size, default="100GiB", show_default=True, help="Disk of each node.")
@options_of_all
def plan(
    rate: float,
    peak: float,
    size: int,
    delay: timedelta,
    kept: timedelta,
    groups: int,
    replicas: int,
    produced: str,
    delivered: str,
    cores: float,
    memory: int,
    disk: int,
) -> None:
    """Estimate what a load needs: nodes, partitions, disk, memory and CPU. Asks no node.

    \b
      sandctl cluster plan --rate 2000 --size 300 --delay 6h
      sandctl cluster plan --rate 50 --delay 30d --kept 7d --disk 500GiB -o json

    The estimate uses figures measured on one machine (docs/performance.md). Other machines can be several times faster
    or slower, so try the load with `sandctl bench` before you buy. The plan works even if one node fails, and uses at
    most 60 % of the CPU and 70 % of the disks.
    """
    load = Load(
        rate=rate,
        message_bytes=size,
        delay_s=delay.total_seconds(),
        kept_s=kept.total_seconds(),
        groups=groups,
        replicas=replicas,
        peak=peak,
        produced=produced,
        delivered=delivered,
    )
    try:
        found = planned(load, Machine(cores, memory, disk))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if settings().output != "table":
        return show_one(asdict(found))
    for line in _lines(found):
        say(line)


def _lines(found: Plan) -> list[str]:
    return [
        f"nodes        {found.nodes} (decided by {found.limited_by})",
        f"partitions   {found.partitions} at least, and as many as consumers of one group",
        f"pending      {counted(found.pending, 'message')}; {found.stored:,} stored in all",
        f"CPU          {found.cores:.2f} cores in the busiest second, of all nodes",
        f"disk         {found.disk_bytes / GIB:,.1f} GiB of each node",
        f"memory       {found.memory_bytes / MIB:,.0f} MiB of each node",
        f"network      {found.network_bytes_per_s / 1e6:,.1f} MB/s of each node in the busiest second",
        *(f"note: {remark}" for remark in found.remarks),
    ]
