"""`sandctl backup`: back up the running cluster, and restore topics."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.options.common import common_options, options_of_all, run
from sandctl.options.confirmation import can_ask, confirm, need_yes, yes_option
from sandctl.options.times import DURATION, INSTANT
from sandctl.output.progress import Progress
from sandctl.output.results import counted, done, say, show_rows, to_json

if TYPE_CHECKING:
    from sandq.backup import BackupKey
    from sandq.backup import Progress as Done
    from sandq.backup.locations import Location
    from sandq.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_COLUMNS = {
    "backup_id": "BACKUP",
    "cluster": "CLUSTER",
    "topics": "TOPICS",
    "partitions": "PARTITIONS",
    "plain_bytes": "BYTES",
    "bytes": "STORED",
    "encrypted": "ENCRYPTED",
    "increments": "INCREMENTS",
    "reach": "REACHES",
    "problem": "PROBLEM",
}

url_argument = click.argument("url")


def key_option(command: F) -> F:
    """`--key-file`."""
    return click.option(
        "--key-file",
        "backup_key",
        metavar="FILE",
        help="The key that encrypts backups: 32 bytes as base64 or hex (openssl rand -base64 32).",
    )(command)


def rate_option(command: F) -> F:
    """`--rate`, in MB per second."""
    return click.option(
        "--rate",
        type=click.IntRange(min=1),
        metavar="MB",
        help="Read or write at most this many MB of rows per second, to leave CPU for other work.",
    )(command)


def topic_option(command: F) -> F:
    """`--topic`, which may be repeated."""
    return click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")(
        command
    )


def work_option(command: F) -> F:
    """`--work-dir`."""
    return click.option(
        "--work-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Directory for temporary data of increments.  [default: that of temporary files]",
    )(command)


def status_option(command: F) -> F:
    """`--status-file`."""
    return click.option(
        "--status-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File for the status: metrics of Prometheus if it ends with .prom, else JSON.",
    )(command)


@click.group(short_help="Create, list, verify, restore and schedule backups.")
def backup() -> None:
    """Back up the running cluster; list, verify and restore backups; make backups at intervals.

    URL is a directory, or a URL that fsspec knows: s3://bucket/path, gs://, sftp://, memory:// (with its package
    installed).
    """


@backup.command()
@url_argument
@topic_option
@click.option(
    "--identities", is_flag=True, help="Include identities, roles and the hashes of tokens (needs `security`)."
)
@click.option("--resume", metavar="BACKUP", help="Continue an interrupted backup.")
@click.option(
    "--incremental", is_flag=True, help="Add an increment to the last backup; make a first backup if there is none."
)
@rate_option
@key_option
@common_options
def create(
    url: str,
    topics: tuple[str, ...],
    identities: bool,
    resume: str | None,
    incremental: bool,
    rate: int | None,
    backup_key: str | None,
) -> None:
    """Back up all topics to URL. Each partition is saved as it is at one moment.

    \b
      sandctl backup create /backups
      sandctl backup create s3://company-backups/sandq --key-file backup.key --identities
      sandctl backup create /backups --topic orders --topic payments
      sandctl backup create /backups --incremental

    It needs the rights `cluster` and `read`. A backup exists once it is finished. An interrupted backup cannot be used,
    but --resume continues it. --incremental saves the data committed since the last backup. The nodes keep this data
    while a backup is followed (`sandctl backup follow`). Partitions whose data was not kept are read in full.
    """
    from sandq.backup import create_backup

    if incremental:
        if resume is not None:
            raise click.UsageError("--incremental and --resume: an interrupted increment begins again")
        _create_increment(url, topics, identities, rate, backup_key)
        return
    location, key = _location(url), _key(backup_key)

    async def work(client: Client) -> Any:
        with _Shown("read") as shown:
            return await create_backup(
                client,
                location,
                topics=topics or None,
                identities=identities,
                key=key,
                resume=resume,
                rate=_bytes_per_s(rate),
                on_progress=shown,
            )

    made = run(work, waits=True)
    _warn(made.warnings)
    topics_said = counted(len(made.topics), "topic")
    done(f"backup {made.backup_id}: {topics_said}, {made.plain_bytes:,} bytes in {made.bytes:,}", made.shown())


def _create_increment(
    url: str, topics: tuple[str, ...], identities: bool, rate: int | None, backup_key: str | None
) -> None:
    from sandq.backup import create_increment

    location, key = _location(url), _key(backup_key)

    async def work(client: Client) -> Any:
        with _Shown("read") as shown:
            return await create_increment(
                client,
                location,
                key=key,
                rate=_bytes_per_s(rate),
                topics=topics or None,
                identities=identities,
                on_progress=shown,
            )

    manifest, made = run(work, waits=True)
    _warn([*made.gone, *made.left, *made.errors])
    rows = f", {made.rebased_bytes:,} bytes of rows" if made.rebased_bytes else ""
    text = f"increment {made.number} of backup {manifest.backup_id}: {made.entries:,} entries{rows}"
    done(f"{text}; it reaches {_shown_time(made.reach_ms)}", made.shown())


@backup.command("list", short_help="List the backups at a URL, the oldest first.")
@url_argument
@key_option
@options_of_all
def list_(url: str, backup_key: str | None) -> None:
    """List the backups at URL, the oldest first. For unusable backups it shows the reason. It needs no cluster.

    \b
      sandctl backup list /backups
      sandctl backup list s3://company-backups/sandq --key-file backup.key -o json
    """
    from sandq.backup import list_backups

    location, key = _location(url), _key(backup_key)
    rows = []
    for one in _alone(functools.partial(list_backups, location, key=key)):
        spans = [f"{_shown_time(start)}..{_shown_time(stop)}" for start, stop in one.spans]
        rows.append({**one.shown(), "reach": _shown_time(one.reach_ms), "times": spans})
    show_rows(rows, _COLUMNS)


@backup.command(short_help="Read a whole backup, and check that it is intact.")
@url_argument
@click.argument("backup_id", metavar="BACKUP", default="latest")
@click.option("--replay", is_flag=True, help="Also rebuild the partitions from its increments, as a restore does.")
@work_option
@key_option
@options_of_all
def verify(url: str, backup_id: str, replay: bool, work_dir: Path | None, backup_key: str | None) -> None:
    """Read a whole BACKUP (default: the last one), and check that it is intact. It needs no cluster.

    \b
      sandctl backup verify /backups
      sandctl backup verify /backups latest --replay
      sandctl backup verify /backups 20300131T080000Z-0a1b2c --key-file backup.key

    It also reads the increments, and checks that none is missing, and that no data is missing between them. If data is
    damaged, truncated or foreign, it reports file and byte, and the exit code is 1.
    """
    from sandq.backup import verify_chain

    location, key = _location(url), _key(backup_key)

    async def work() -> Any:
        named = await _named(location, backup_id, key)
        with _Shown("verified") as shown:
            return await verify_chain(location, named, replay=replay, work=work_dir, key=key, on_progress=shown)

    found = _alone(work)
    manifest = found.manifest
    behind = f", {counted(found.increments, 'increment')}" if found.increments else ""
    made = f", {counted(found.replayed, 'partition')} created" if found.replayed is not None else ""
    done(f"backup {manifest.backup_id} is intact: {manifest.plain_bytes:,} bytes{behind}{made}", found.shown())


@backup.command(short_help="Restore topics of a backup, in this or another cluster.")
@url_argument
@click.argument("backup_id", metavar="BACKUP", default="latest")
@topic_option
@click.option("--as", "names", multiple=True, metavar="TOPIC=NAME", help="A new name for a topic; may be repeated.")
@click.option("--prefix", default="", metavar="TEXT", help="Prefix for the names of all other topics.")
@click.option(
    "--replicas", type=click.IntRange(min=1), metavar="N", help="Number of replicas.  [default: as in the backup]"
)
@click.option("--identities", is_flag=True, help="Also restore identities and roles (needs `security`).")
@click.option("--resume-groups", is_flag=True, help="Do not pause the groups, so that they get due messages at once.")
@click.option(
    "--verify/--no-verify", default=True, help="Read the whole backup before anything is created (the default)."
)
@click.option(
    "--at",
    type=INSTANT,
    metavar="TIME",
    help="Restore the state at this time (2030-01-31T10:00:00Z).  [default: the last one in the increments]",
)
@click.option("--base", is_flag=True, help="Restore the backup itself, without its increments.")
@work_option
@rate_option
@key_option
@common_options
def restore(
    url: str,
    backup_id: str,
    topics: tuple[str, ...],
    names: tuple[str, ...],
    prefix: str,
    replicas: int | None,
    identities: bool,
    resume_groups: bool,
    verify: bool,
    at: int | None,
    base: bool,
    work_dir: Path | None,
    rate: int | None,
    backup_key: str | None,
) -> None:
    """Restore the topics of BACKUP (default: the last one), in this cluster or in a different one.

    \b
      sandctl backup restore /backups
      sandctl backup restore /backups 20300131T080000Z-0a1b2c --topic orders --as orders=orders-old
      sandctl backup restore /backups --prefix restored-
      sandctl backup restore /backups --at 2030-01-31T10:00:00Z --prefix at-ten-

    Topics must not exist: nothing is overwritten. Messages keep their times and ids. Leased messages are available
    again, and keep their number of attempts. Groups are paused: check first, then `sandctl group resume`. To continue
    an interrupted restore, start it again with the same options. Until then, its topics have the state `restoring` and
    accept nothing. If the backup has increments, the last state is restored, or the state of --at. If the increments do
    not cover the time of --at, the command fails and names the nearest possible times. Increments need a temporary
    directory (--work-dir) with space for twice the restored data. It needs the rights `cluster`, `manage` and
    `produce`, and for increments the package sandq.
    """
    from sandq.backup import restore_backup

    if base and at is not None:
        raise click.UsageError("--at and --base: a point in time needs increments")

    location, key, renamed = _location(url), _key(backup_key), _names(names)

    async def work(client: Client) -> Any:
        named = await _named(location, backup_id, key)
        with _Shown("restored") as shown:
            return await restore_backup(
                client,
                location,
                named,
                topics=topics or None,
                names=renamed,
                prefix=prefix,
                replicas=replicas,
                identities=identities,
                resume_groups=resume_groups,
                verify=verify,
                with_increments=not base,
                at_ms=at,
                work=work_dir,
                key=key,
                rate=_bytes_per_s(rate),
                on_progress=shown,
            )

    found = run(work, waits=True)
    _warn(found.warnings)
    groups = sum(map(len, found.paused_groups.values()))
    paused = f"; {counted(groups, 'group')} paused (sandctl group resume)" if groups else ""
    record = {
        "backup_id": found.backup_id,
        "topics": dict(found.topics),
        "partitions": found.partitions,
        "rows": found.rows,
        "bytes": found.bytes,
        "paused_groups": {name: list(groups) for name, groups in found.paused_groups.items()},
        "identities": found.identities,
        "limits": list(found.limits),
        "warnings": list(found.warnings),
    }
    limits = f" and {counted(len(found.limits), 'limit')}" if found.limits else ""
    done(f"restored {counted(len(found.topics), 'topic')}{limits} of backup {found.backup_id}{paused}", record)


@backup.command()
@url_argument
@click.argument("backup_id", metavar="BACKUP")
@yes_option
@options_of_all
def delete(url: str, backup_id: str, yes: bool) -> None:
    """Delete BACKUP with all its files. It needs no cluster.

    \b
      sandctl backup delete /backups 20300131T080000Z-0a1b2c
    """
    from sandq.backup import delete_backup

    location = _location(url)
    if not yes:
        need_yes("a deleted backup cannot be recovered")
        if can_ask():
            confirm(f"Delete backup {backup_id} at {location.shown}?", "deleted")
    _alone(functools.partial(delete_backup, location, backup_id))
    done(f"backup {backup_id} deleted", {"backup_id": backup_id})


@backup.command(short_help="Make backups at intervals, and delete old ones.")
@url_argument
@click.option("--every", required=True, type=DURATION, metavar="DURATION", help="Time between two backups, such as 6h.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=14, show_default=True, metavar="N", help="Number of backups to keep."
)
@click.option(
    "--increments",
    "increments_every",
    type=DURATION,
    metavar="DURATION",
    help="In between, add increments to the last backup at this interval, such as 30s.",
)
@topic_option
@click.option(
    "--identities", is_flag=True, help="Include identities, roles and the hashes of tokens (needs `security`)."
)
@status_option
@rate_option
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after N backups.  [default: continue]")
@key_option
@common_options
def schedule(
    url: str,
    every: timedelta,
    keep: int,
    increments_every: timedelta | None,
    topics: tuple[str, ...],
    identities: bool,
    status_file: Path | None,
    rate: int | None,
    times: int | None,
    backup_key: str | None,
) -> None:
    """Make a backup at URL at intervals, and delete old ones, until it is stopped.

    \b
      sandctl backup schedule /backups --every 6h --keep 14
      sandctl backup schedule /backups --every 1d --status-file /var/lib/node_exporter/sandq.prom
      sandctl backup schedule /backups --every 1d --increments 30s

    The interval begins at the last good backup. A failed backup is reported, and retried within five minutes. The last
    good backup is never deleted. Each backup prints a line, or with -o jsonl an object.
    """
    from sandq.backup import BackupSchedule

    location, key, tell = _location(url), _key(backup_key), _teller()

    async def work(client: Client) -> None:
        going = BackupSchedule(
            client,
            location,
            every.total_seconds(),
            keep,
            topics=topics or None,
            identities=identities,
            key=key,
            rate=_bytes_per_s(rate),
            increments_s=None if increments_every is None else increments_every.total_seconds(),
            status=status_file,
            tell=tell,
        )
        await going.run(times)

    run(work, waits=True)


@backup.command(short_help="Add increments to a backup continuously.")
@url_argument
@click.argument("backup_id", metavar="BACKUP", default="latest")
@click.option(
    "--every", default="10s", show_default=True, type=DURATION, metavar="DURATION", help="Time between two increments."
)
@topic_option
@click.option("--identities", is_flag=True, help="With identities, if a backup is made first (needs `security`).")
@status_option
@rate_option
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after N increments.  [default: continue]")
@key_option
@common_options
def follow(
    url: str,
    backup_id: str,
    every: timedelta,
    topics: tuple[str, ...],
    identities: bool,
    status_file: Path | None,
    rate: int | None,
    times: int | None,
    backup_key: str | None,
) -> None:
    """Copy committed data after BACKUP until stopped, so that each later moment can be restored.

    BACKUP is the last backup by default. If there is no backup, the command first makes one.

    \b
      sandctl backup follow /backups
      sandctl backup follow /backups --every 30s --status-file /var/lib/node_exporter/sandq.prom

    After a stop or a crash, start it again: it continues where it ended. The nodes keep their logs for five minutes,
    and 64 MiB of each partition. Partitions whose log was not kept are read in full again. Times in between cannot be
    restored for these partitions, and the command reports this. It needs the rights `cluster` and `read`.
    """
    from sandq.backup import BackupFollower, ChainKeeper, Standing, StatusFile, create_backup, last_of_cluster
    from sandq.backup import manifest as manifests

    location, key = _location(url), _key(backup_key)
    tell = _teller()

    async def work(client: Client) -> None:
        if backup_id != "latest":
            manifest = manifests.read(location, backup_id, key)
        else:
            found = await last_of_cluster(client, location, key, topics or None)
            if found is None:
                with _Shown("read") as shown:
                    found = await create_backup(
                        client,
                        location,
                        topics=topics or None,
                        identities=identities,
                        key=key,
                        rate=_bytes_per_s(rate),
                        follow=True,
                        on_progress=shown,
                    )
                tell("backup made", {"backup": found.backup_id, "bytes": found.bytes, "warnings": list(found.warnings)})
            manifest = found
        follower = BackupFollower(client, location, manifest, key=key, rate=_bytes_per_s(rate))
        status = None if status_file is None else StatusFile(status_file)
        standing = Standing(backups=1, last_backup=manifest.backup_id, last_success_ms=manifest.ended_ms)
        standing.last_bytes = manifest.bytes
        keeper = ChainKeeper(follower, every.total_seconds(), standing, status=status, tell=tell)
        await keeper.run(times)

    run(work, waits=True)


def _teller() -> Callable[[str, dict[str, object]], None]:
    """Print the result: a line, or with -o jsonl an object."""
    from sandctl.settings import settings

    is_table = settings().output == "table"

    def tell(event: str, fields: dict[str, object]) -> None:
        if is_table:
            told = [f"{name} {value}" for name, value in fields.items() if value not in ([], None)]
            say(f"{event}: {', '.join(told)}")
        else:
            say(to_json({"event": event, **fields}))

    return tell


def _shown_time(at_ms: int | None) -> str | None:
    from sandq.backup.chain import shown_time

    return None if at_ms is None else shown_time(at_ms)


class _Shown:
    """Shows the progress in bytes."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._line = Progress(verb)

    def __enter__(self) -> _Shown:
        self._line.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._line.__exit__(*error)

    def __call__(self, progress: Done) -> None:
        of = max(progress.bytes, progress.bytes_done)
        partitions = f"{progress.partitions_done} of {counted(progress.partitions, 'partition')}"
        share = f", {progress.bytes_done * 100 // of}%" if of else ""
        self._line.tell(f"{self._verb} {partitions}, {progress.bytes_done:,} bytes{share}")


def _bytes_per_s(rate: int | None) -> int | None:
    return None if rate is None else rate * 1_000_000


def _location(url: str) -> Location:
    from sandq.backup import open_location

    return open_location(url)


def _key(path: str | None) -> BackupKey | None:
    from sandq.backup import BackupKey

    return None if path is None else BackupKey.read(path)


async def _named(location: Location, backup_id: str, key: BackupKey | None) -> str:
    """Return the backup of a name; `latest` is the last good backup."""
    if backup_id != "latest":
        return backup_id
    from sandq.backup import NoBackup, list_backups

    there = await list_backups(location, key=key)
    good = [one.backup_id for one in there if one.manifest is not None]
    if good:
        return good[-1]
    why = f": {there[-1].backup_id}: {there[-1].problem}" if there else ""
    raise NoBackup(f"there is no backup in {location.shown} that can be used{why}")


def _names(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in names:
        topic, separator, name = text.partition("=")
        if not (topic and separator and name):
            raise click.UsageError(f"--as {text!r}: TOPIC=NAME is expected")
        found[topic] = name
    return found


def _alone(work: Callable[[], Awaitable[T]]) -> T:
    """Run a command that needs no cluster."""
    import anyio

    return anyio.run(work)


def _warn(warnings: Any) -> None:
    for warning in warnings:
        say(f"sandctl: {warning}", err=True)
