"""`sandctl backup`: the cluster backed up while it runs, and topics restored."""

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
    from sandq.backup.places import Place
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
        help="The key that backups are encrypted with: 32 bytes as base64 or hex (openssl rand -base64 32).",
    )(command)


def rate_option(command: F) -> F:
    """`--rate`."""
    return click.option(
        "--rate",
        type=click.IntRange(min=1),
        metavar="MB",
        help="So many MB of rows a second at most, so that the rest of the work has its time.",
    )(command)


def topic_option(command: F) -> F:
    """`--topic`, which may come again."""
    return click.option(
        "--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given again."
    )(command)


def work_option(command: F) -> F:
    """`--work-dir`."""
    return click.option(
        "--work-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Where what increments make is put meanwhile; else where temporary files are.",
    )(command)


def status_option(command: F) -> F:
    """`--status-file`."""
    return click.option(
        "--status-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Where it is said how that goes, as JSON; as metrics of Prometheus where it ends with .prom.",
    )(command)


@click.group(short_help="Create, list, verify, restore and schedule backups.")
def backup() -> None:
    """Back up the cluster while it runs; list, verify, restore backups, and make them at intervals.

    URL is a directory, or what fsspec knows: s3://bucket/path, gs://, sftp://, memory:// (with its package installed).
    """


@backup.command()
@url_argument
@topic_option
@click.option("--identities", is_flag=True, help="With identities, roles and the hashes of tokens (`security`).")
@click.option("--resume", metavar="BACKUP", help="Go on with a backup that was stopped.")
@click.option(
    "--incremental", is_flag=True, help="Add an increment to the last backup; a first backup where there is none."
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
    """Back up all topics to URL, each partition as it is at one moment.

    \b
      sandctl backup create /backups
      sandctl backup create s3://company-backups/sandq --key-file backup.key --identities
      sandctl backup create /backups --topic orders --topic payments
      sandctl backup create /backups --incremental

    Needs the rights `cluster` and `read`. It is there once it is finished: what was stopped before is none, and goes on
    with --resume. --incremental has what was committed since the last one, as far as the nodes have kept it, which they
    do while a backup is followed (`sandctl backup follow`); of partitions of which they did not it reads all.
    """
    from sandq.backup import create_backup

    if incremental:
        if resume is not None:
            raise click.UsageError("--incremental and --resume: an increment that was stopped is begun anew")
        _create_increment(url, topics, identities, rate, backup_key)
        return
    place, key = _place(url), _key(backup_key)

    async def work(client: Client) -> Any:
        with _Shown("read") as shown:
            return await create_backup(
                client,
                place,
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

    place, key = _place(url), _key(backup_key)

    async def work(client: Client) -> Any:
        with _Shown("read") as shown:
            return await create_increment(
                client,
                place,
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
    """Show the backups at URL, the oldest first; also those that cannot be used, and why. Needs no cluster.

    \b
      sandctl backup list /backups
      sandctl backup list s3://company-backups/sandq --key-file backup.key -o json
    """
    from sandq.backup import list_backups

    place, key = _place(url), _key(backup_key)
    rows = []
    for one in _alone(functools.partial(list_backups, place, key=key)):
        spans = [f"{_shown_time(start)}..{_shown_time(stop)}" for start, stop in one.spans]
        rows.append({**one.shown(), "reach": _shown_time(one.reach_ms), "times": spans})
    show_rows(rows, _COLUMNS)


@backup.command(short_help="Read a whole backup, and check that it is intact.")
@url_argument
@click.argument("backup_id", metavar="BACKUP", default="latest")
@click.option("--replay", is_flag=True, help="Make partitions of its increments, as a restore does, and let them go.")
@work_option
@key_option
@options_of_all
def verify(url: str, backup_id: str, replay: bool, work_dir: Path | None, backup_key: str | None) -> None:
    """Read BACKUP (the last one) as a whole, and say whether it is what was written. Needs no cluster.

    \b
      sandctl backup verify /backups
      sandctl backup verify /backups latest --replay
      sandctl backup verify /backups 20300131T080000Z-0a1b2c --key-file backup.key

    Its increments are read as well: that none is missing, nor anything between them. What is damaged, truncated or of
    another backup is told with its file and byte, and exit code 1.
    """
    from sandq.backup import verify_chain

    place, key = _place(url), _key(backup_key)

    async def work() -> Any:
        named = await _named(place, backup_id, key)
        with _Shown("verified") as shown:
            return await verify_chain(place, named, replay=replay, work=work_dir, key=key, on_progress=shown)

    found = _alone(work)
    manifest = found.manifest
    behind = f", {counted(found.increments, 'increment')}" if found.increments else ""
    made = f", {counted(found.replayed, 'partition')} made of them" if found.replayed is not None else ""
    done(f"backup {manifest.backup_id} is good: {manifest.plain_bytes:,} bytes{behind}{made}", found.shown())


@backup.command(short_help="Restore topics of a backup, in this or another cluster.")
@url_argument
@click.argument("backup_id", metavar="BACKUP", default="latest")
@topic_option
@click.option("--as", "names", multiple=True, metavar="TOPIC=NAME", help="Another name for a topic; may come again.")
@click.option("--prefix", default="", metavar="TEXT", help="What stands before the names of all others.")
@click.option("--replicas", type=click.IntRange(min=1), metavar="N", help="So many of each, not as many as there were.")
@click.option("--identities", is_flag=True, help="Restore who may do what as well (`security`).")
@click.option("--resume-groups", is_flag=True, help="Let groups have what is due at once; else they are paused.")
@click.option("--verify/--no-verify", default=True, help="Read all of it before anything is made (the default).")
@click.option(
    "--at",
    type=INSTANT,
    metavar="TIME",
    help="As it was then (2030-01-31T10:00:00Z); else as late as its increments have it.",
)
@click.option("--base", is_flag=True, help="The backup itself, without its increments.")
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
    """Make the topics of BACKUP (the last one) again, in this cluster or another one.

    \b
      sandctl backup restore /backups
      sandctl backup restore /backups 20300131T080000Z-0a1b2c --topic orders --as orders=orders-old
      sandctl backup restore /backups --prefix restored-
      sandctl backup restore /backups --at 2030-01-31T10:00:00Z --prefix at-ten-

    A topic must not be there: nothing is written over. Messages keep their times and ids; what was leased is to be had
    again, with its attempts. Groups are paused: look, then `sandctl group resume`. A restore that was stopped goes on
    when it is begun again with the same options; until it is through its topics say `restoring` and take nothing.
    With increments it is as they have it at last, or as of --at; times that they do not have are refused, with the
    nearest ones. What they make of the backup is put into a directory meanwhile (--work-dir), and needs twice the room
    of what is restored. Needs the rights `cluster`, `manage` and `produce`, and for increments the package sandq.
    """
    from sandq.backup import restore_backup

    if base and at is not None:
        raise click.UsageError("--at and --base: a point in time needs increments")

    place, key, renamed = _place(url), _key(backup_key), _names(names)

    async def work(client: Client) -> Any:
        named = await _named(place, backup_id, key)
        with _Shown("restored") as shown:
            return await restore_backup(
                client,
                place,
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
        "warnings": list(found.warnings),
    }
    done(f"restored {counted(len(found.topics), 'topic')} of backup {found.backup_id}{paused}", record)


@backup.command()
@url_argument
@click.argument("backup_id", metavar="BACKUP")
@yes_option
@options_of_all
def delete(url: str, backup_id: str, yes: bool) -> None:
    """Delete BACKUP, and all of its files. Needs no cluster.

    \b
      sandctl backup delete /backups 20300131T080000Z-0a1b2c
    """
    from sandq.backup import delete_backup

    place = _place(url)
    if not yes:
        need_yes("a backup that is deleted is gone")
        if can_ask():
            confirm(f"Delete backup {backup_id} at {place.shown}?", "deleted")
    _alone(functools.partial(delete_backup, place, backup_id))
    done(f"backup {backup_id} deleted", {"backup_id": backup_id})


@backup.command(short_help="Make backups at intervals, and delete old ones.")
@url_argument
@click.option("--every", required=True, type=DURATION, metavar="DURATION", help="Between two backups: 6h.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=14, show_default=True, metavar="N", help="So many are kept."
)
@click.option(
    "--increments",
    "increments_every",
    type=DURATION,
    metavar="DURATION",
    help="Between them, follow the last one with an increment so often: 30s.",
)
@topic_option
@click.option("--identities", is_flag=True, help="With identities, roles and the hashes of tokens (`security`).")
@status_option
@rate_option
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after so many; else it goes on.")
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
    """Make a backup at URL every so often, and delete those that are too many; until it is ended.

    \b
      sandctl backup schedule /backups --every 6h --keep 14
      sandctl backup schedule /backups --every 1d --status-file /var/lib/node_exporter/sandq.prom
      sandctl backup schedule /backups --every 1d --increments 30s

    The time counts from the last good backup that is there. One that fails is told of, and tried again within five
    minutes; the last good one is never deleted. A line is written for each; with -o jsonl an object.
    """
    from sandq.backup import BackupSchedule

    place, key, tell = _place(url), _key(backup_key), _teller()

    async def work(client: Client) -> None:
        going = BackupSchedule(
            client,
            place,
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


@backup.command(short_help="Ship changes behind a backup until it is ended.")
@url_argument
@click.argument("backup_id", metavar="BACKUP", default="latest")
@click.option(
    "--every", default="10s", show_default=True, type=DURATION, metavar="DURATION", help="Between two increments."
)
@topic_option
@click.option("--identities", is_flag=True, help="With identities, where a backup is made first (`security`).")
@status_option
@rate_option
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after so many; else it goes on.")
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
    """Follow the cluster behind BACKUP (its last one, or one that is made first): ship what is committed, so that
    each moment from then on can be restored; until it is ended.

    \b
      sandctl backup follow /backups
      sandctl backup follow /backups --every 30s --status-file /var/lib/node_exporter/sandq.prom

    It goes on where it was ended, or killed, as far as the nodes have kept their logs: for five minutes, and 64 MiB of
    each partition. Partitions of which they did not are read anew, and the times between cannot be restored: it says
    so. Needs the rights `cluster` and `read`.
    """
    from sandq.backup import BackupFollower, ChainKeeper, Standing, StatusFile, create_backup, last_of_cluster
    from sandq.backup import manifest as manifests

    place, key = _place(url), _key(backup_key)
    tell = _teller()

    async def work(client: Client) -> None:
        if backup_id != "latest":
            manifest = manifests.read(place, backup_id, key)
        else:
            found = await last_of_cluster(client, place, key, topics or None)
            if found is None:
                with _Shown("read") as shown:
                    found = await create_backup(
                        client,
                        place,
                        topics=topics or None,
                        identities=identities,
                        key=key,
                        rate=_bytes_per_s(rate),
                        follow=True,
                        on_progress=shown,
                    )
                tell("backup made", {"backup": found.backup_id, "bytes": found.bytes, "warnings": list(found.warnings)})
            manifest = found
        follower = BackupFollower(client, place, manifest, key=key, rate=_bytes_per_s(rate))
        status = None if status_file is None else StatusFile(status_file)
        standing = Standing(backups=1, last_backup=manifest.backup_id, last_success_ms=manifest.ended_ms)
        standing.last_bytes = manifest.bytes
        keeper = ChainKeeper(follower, every.total_seconds(), standing, status=status, tell=tell)
        await keeper.run(times)

    run(work, waits=True)


def _teller() -> Callable[[str, dict[str, object]], None]:
    """Say what was done: a line, or with -o jsonl an object."""
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
    """How far it is, in bytes."""

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


def _place(url: str) -> Place:
    from sandq.backup import place_of

    return place_of(url)


def _key(path: str | None) -> BackupKey | None:
    from sandq.backup import BackupKey

    return None if path is None else BackupKey.read(path)


async def _named(place: Place, backup_id: str, key: BackupKey | None) -> str:
    """`latest` is the last good one."""
    if backup_id != "latest":
        return backup_id
    from sandq.backup import NoBackup, list_backups

    there = await list_backups(place, key=key)
    good = [one.backup_id for one in there if one.manifest is not None]
    if good:
        return good[-1]
    why = f": {there[-1].backup_id}: {there[-1].problem}" if there else ""
    raise NoBackup(f"there is no backup in {place.shown} that can be used{why}")


def _names(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in names:
        topic, separator, name = text.partition("=")
        if not (topic and separator and name):
            raise click.UsageError(f"--as {text!r}: TOPIC=NAME is expected")
        found[topic] = name
    return found


def _alone(work: Callable[[], Awaitable[T]]) -> T:
    """Without a cluster."""
    import anyio

    return anyio.run(work)


def _warn(warnings: Any) -> None:
    for warning in warnings:
        say(f"sandctl: {warning}", err=True)
