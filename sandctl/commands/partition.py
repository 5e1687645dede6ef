"""`sandctl partition`: replicas that are shut because they cannot apply an entry, and the way on (ADR 46)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.names import topic_argument
from sandctl.output.results import counted, done, say, show_rows

if TYPE_CHECKING:
    from sandq.client import Client

METADATA = "@metadata"
"""What stands for the cluster's metadata where a topic is expected: no topic has such a name."""


@click.group(short_help="List and skip entries that shut partitions.")
def partition() -> None:
    """Look at partitions that are shut because an entry of their log cannot be applied, and skip that entry.

    A replica that cannot apply an entry stops at the entry before it; its node and all other partitions go on. If a
    version without the fault is started, it applies the entry and the partition opens by itself. Skipping is for when
    there is no such version: what is skipped is lost.
    """


@partition.command("shut", short_help="List the replicas that are shut, and why.")
@common_options
def shut() -> None:
    """List the replicas that are shut, on all nodes: the entry that could not be applied, and why.

    \b
      sandctl partition shut

    LEADS marks the replica that decides: `partition skip` asks it.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return list((await client.admin.cluster()).get("shut") or ())

    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "node": "NODE",
        "leads": "LEADS",
        "index": "ENTRY",
        "step": "STEP",
        "error": "ERROR",
    }
    show_rows([{**row, "topic": row["topic"] or METADATA} for row in run(work)], columns, None)


@partition.command("skip", short_help="Skip the entry that shut a partition.")
@topic_argument()
@click.argument("partition_number", type=click.IntRange(0), metavar="PARTITION", default=0)
@click.option("--index", type=click.IntRange(1), help="Entry to skip, as `partition shut` lists it.")
@click.option(
    "--command",
    "commands",
    type=click.IntRange(0),
    multiple=True,
    help="Position of a command in the entry; may be repeated.  [default: the one that failed; all if not known]",
)
@click.option("--dry-run", is_flag=True, help="Only show what the entry holds.")
@click.option("--force", is_flag=True, help="Skip although a replica that may have applied it cannot be reached.")
@yes_option
@common_options
def skip(
    topic: str,
    partition_number: int,
    index: int | None,
    commands: tuple[int, ...],
    dry_run: bool,
    force: bool,
    yes: bool,
) -> None:
    """Skip the entry that shut PARTITION of TOPIC, on all replicas: they open again. `@metadata` is the metadata.

    \b
      sandctl partition skip orders 0 --dry-run
      sandctl partition skip orders 0 --index 48213
      sandctl partition skip orders 0 --index 48213 --command 2

    What is skipped is lost. Whoever sent it has had no answer, or one that leaves the outcome open; sent again, it is
    refused. Look at the entry with --dry-run first. Needs the right `cluster`; the audit log keeps it.
    """
    if index is None and not dry_run:
        raise click.UsageError("say which entry: --index, as `sandctl partition shut` lists it; or --dry-run")
    if not yes and not dry_run:
        need_yes("what is skipped is lost")
    name = None if topic == METADATA else topic
    chosen = list(commands) or None

    async def work(client: Client, is_dry: bool) -> dict[str, Any]:
        return await client.admin.skip_entry(
            name, partition_number, index=index, commands=chosen, dry_run=is_dry, force=force
        )

    found = run(lambda client: work(client, dry_run or not yes))
    _show(found)
    if dry_run:
        return done("nothing was skipped", found)
    if not yes:
        count = sum(row["skipped"] for row in found["commands"])
        what = f"Skip {counted(count, 'command')} of entry {found['index']}? What is in it is lost."
        confirm(what, "skipped")
        found = run(lambda client: work(client, False))
    done(f"entry {found['index']} is skipped; the replicas open again", found)


def _show(found: dict[str, Any]) -> None:
    """Show what an entry holds, to a person."""
    say(f"{found['node']} leads; entry {found['index']} of term {found['term']}: {found['error']}", err=True)
    for row in found["commands"]:
        marks = " (failed)" if row["failed"] else ""
        say(f"  {row['position']}: {row['text']}{marks}{'' if row['skipped'] else ' (kept)'}", err=True)
