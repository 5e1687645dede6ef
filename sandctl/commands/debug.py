"""`sandctl debug`: inspect a node to find a problem."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sandctl.options.common import common_options, run
from sandctl.options.times import DURATION, now_ms
from sandctl.output.results import counted, done, say, show_one
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client

FAILURES_MOST: Final = 3
"""After this number of topics whose groups cannot be read, no more groups are requested.

Each failure may take up to the time limit of a request."""
_NODE = click.option("--node", metavar="NODE", help="The node.  [default: the one that answers]")


@click.group(short_help="Inspect a node: stacks, stalls, queues, logs.")
def debug() -> None:
    """Inspect a node: stacks, stalls, queues; change its log level; collect everything."""


@debug.command()
@_NODE
@common_options
def dump(node: str | None) -> None:
    """Show what a node is doing now.

    \b
      sandctl debug dump
      sandctl debug dump --node node2 -o json

    The dump has the stacks of the node's threads and tasks, its queues and its memory. It says when the event loop was
    blocked, and by what. With -o json, the dump also has the node's configuration and its last log lines. It contains
    names, but no values, keys, headers or secrets.
    """

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.dump(node)

    found = run(work)
    if settings().output != "table":
        return show_one(found)
    for line in _summary_lines(found):
        say(line)


def _summary_lines(found: dict[str, Any]) -> Iterator[str]:
    """Print a dump for people."""
    process = found["process"]
    versions = f"sandq {process['version']}, Python {process['python']}"
    yield f"{versions}, up {process['uptime_s']:.0f} s, CPU {process['cpu_s']:.0f} s"
    yield f"stalled: {found['stalled'] or 'no'}"
    if found["loop_stall_count"] is not None:
        yield f"the event loop stalled {counted(found['loop_stall_count'], 'time')}"
    for stall in found["loop_stalls"]:
        yield f"  {stall['seconds']:.2f} s at {(stall['stack'] or ['(the whole process)'])[0]}"
    for name, age_s in sorted(found["standing_still_s"].items()):
        yield f"no progress of {name} for {age_s:.2f} s"
    for name, held in sorted(found["memory"]["accounts"].items()):
        if held["bytes"]:
            yield f"memory of {name}: {held['bytes']:,} of {held['limit']:,} bytes"
    groups, connections = found["raft_groups"], found["connections"]
    yield f"{counted(groups['count'], 'Raft group')}, {groups['led']} led"
    yield counted(connections["count"], "connection")
    for group in groups["most_behind"]:
        if group["unapplied"] or group["failed"]:
            where = "metadata" if group["topic"] is None else f"{group['topic']}/{group['partition']}"
            yield f"  {where}: {group['unapplied']:,} not applied {group['failed'] or ''}".rstrip()
    for title, rows in (("threads", found["threads"]), ("tasks", found["tasks"])):
        yield ""
        yield f"{title}:"
        for row in rows:
            indent = "  " * (row.get("depth", 0) + 1)
            yield f"{indent}{row['name']}"
            for place in row["stack"]:
                yield f"{indent}  | {place}"


@debug.command("log-level")
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]), required=False)
@click.option(
    "--for", "for_", type=DURATION, help="Time limit, at most 1d; after that the configured level applies again."
)
@_NODE
@common_options
def log_level(level: str | None, for_: timedelta | None, node: str | None) -> None:
    """Show the log level of a node, or change it to LEVEL.

    \b
      sandctl debug log-level
      sandctl debug log-level debug --for 10m

    Without --for, the level applies until the node stops. Connections that were opened before keep their level.
    """
    if level is None and for_ is not None:
        raise click.UsageError("--for needs a LEVEL")

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.log_level(level, for_=for_, node=node)

    show_one(run(work))


@debug.command(short_help="Collect information about the cluster in a .tar.gz.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@common_options
def bundle(file: Path) -> None:
    """Collect information about the cluster in FILE, a .tar.gz, to be read elsewhere.

    \b
      sandctl debug bundle sandq-debug.tar.gz

    FILE has the cluster as each node sees it, the topics and groups, and a dump of each node. It contains names and
    addresses, but no values, keys, headers or secrets. If a part cannot be read, the command reports it and continues.
    """
    with contextlib.ExitStack() as opened:
        try:
            # The bundle contains log lines, so only the user may read it.
            out = opened.enter_context(open(file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)))
        except FileExistsError:
            raise click.ClickException(f"{file} is there already") from None
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror}") from None
        try:
            parts, missing = run(_collect)
            parts |= {"missing": missing} if missing else {}
            with tarfile.open(fileobj=out, mode="w:gz") as archive:
                for name, found in parts.items():
                    data = json.dumps(found, indent=1, default=str).encode()
                    entry = tarfile.TarInfo(f"sandq-debug/{name}.json")
                    entry.size, entry.mtime = len(data), now_ms() // 1000
                    archive.addfile(entry, io.BytesIO(data))
        except BaseException:
            file.unlink(missing_ok=True)
            raise
    told = {"file": str(file), "parts": len(parts), "bytes": file.stat().st_size, "missing": missing}
    done(f"{file}: {counted(len(parts), 'part')}, {told['bytes']:,} bytes", told)
    for name, why in missing.items():
        click.echo(f"not in it: {name}: {why}", err=True)


async def _collect(client: Client) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content by file name, and the parts that could not be read."""
    from sandq.client.admin import partition_rows
    from sandq.errors import SandqError

    parts: dict[str, Any] = {}
    missing: dict[str, str] = {}

    async def add(name: str, asking: Any) -> Any:
        try:
            parts[name] = await asking
        except SandqError as error:
            missing[name] = error.message
        return parts.get(name)

    admin = client.admin
    parts["cluster"] = info = await admin.cluster()
    # Begin with the requests that succeed even if the cluster has a fault. A waiting node may know only itself.
    up = {str(row["node"]): bool(row.get("up")) for row in info.get("nodes") or ()}
    for node in up or (None,):
        name = f"nodes/{node or info.get('node')}"
        if node is not None and not up[node]:
            missing[name] = "it cannot be reached"
            continue
        await add(name, admin.dump(node))
        await add(f"{name}.cluster", admin.cluster(node))
    await add("clock", admin.clock())
    records = await add("topics", _topics(client))
    if records is None:
        return parts, missing  # further parts would fail, too
    await add("partitions", partition_rows(admin, None, None))
    failures = 0
    for topic in records:
        if failures == FAILURES_MOST:
            missing["groups of more topics"] = f"those of {failures} could not be read"
            break
        failures += await add(f"groups/{topic['name']}", admin.groups(topic["name"])) is None
    return parts, missing


async def _topics(client: Client) -> list[dict[str, Any]]:
    return [_plain(record) for record in await client.admin.list_topics()]


def _plain(record: Any) -> dict[str, Any]:
    return {**record._asdict(), "partitions": [row._asdict() for row in record.partitions]}
