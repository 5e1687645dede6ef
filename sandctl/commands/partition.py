"""`sandctl partition`: list replicas that cannot apply an entry, and skip that entry (ADR 46)."""

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
"""The word that names the cluster's metadata instead of a topic; no topic can have this name."""


@click.group(short_help="List and skip entries that stopped partitions.")
def partition() -> None:
    """List partitions that stopped because they cannot apply an entry of their log, and skip that entry.

    A replica that cannot apply an entry stops before that entry. Its node and all other partitions continue. If you
    start a version of sandq without the fault, the replica applies the entry, and the partition opens again. Skip the
    entry only if there is no such version: what you skip is lost.
    """


@partition.command("shut", short_help="List the stopped replicas and the reasons.")
@common_options
def shut() -> None:
    """List the stopped replicas on all nodes, with the entry that each could not apply, and why.

    \b
      sandctl partition shut

    LEADS marks the leader: `partition skip` asks it.
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


@partition.command("skip", short_help="Skip the entry that stopped a partition.")
@topic_argument()
@click.argument("partition_number", type=click.IntRange(0), metavar="PARTITION", default=0)
@click.option("--index", type=click.IntRange(1), help="Index of the entry, as `partition shut` lists it.")
@click.option(
    "--command",
    "commands",
    type=click.IntRange(0),
    multiple=True,
    help="Position of a command in the entry. May be repeated.  [default: the command that failed; all if not known]",
)
@click.option("--dry-run", is_flag=True, help="Only show what the entry holds.")
@click.option("--force", is_flag=True, help="Skip even if a replica that may have applied the entry cannot be reached.")
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
    """Skip the entry that stopped PARTITION of TOPIC, on all replicas, so that they open again. `@metadata` means the
    cluster's metadata.

    \b
      sandctl partition skip orders 0 --dry-run
      sandctl partition skip orders 0 --index 48213
      sandctl partition skip orders 0 --index 48213 --command 2

    Skipped commands are lost. The sender of a skipped command got no response, or a response that leaves the outcome
    open. If it sends the command again, the request is refused. Look at the entry with --dry-run first. Skipping needs
    the right `cluster`, and the audit log records it.
    """
    if index is None and not dry_run:
        raise click.UsageError("name the entry with --index, as `sandctl partition shut` lists it, or give --dry-run")
    if not yes and not dry_run:
        need_yes("what you skip is lost")
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
        what = f"Skip {counted(count, 'command')} of entry {found['index']}? Its content is lost."
        confirm(what, "skipped")
        found = run(lambda client: work(client, False))
    done(f"entry {found['index']} is skipped; the replicas open again", found)


def _show(found: dict[str, Any]) -> None:
    """Show what an entry holds, as text."""
    say(f"{found['node']} leads; entry {found['index']} of term {found['term']}: {found['error']}", err=True)
    for row in found["commands"]:
        marks = " (failed)" if row["failed"] else ""
        say(f"  {row['position']}: {row['text']}{marks}{'' if row['skipped'] else ' (kept)'}", err=True)
