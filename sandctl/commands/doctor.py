"""`sandctl doctor`: find problems of a cluster, and say what to do.

It changes nothing. `sandq doctor` checks whether a node can run on a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topics_option
from sandctl.options.times import now_ms
from sandctl.output.results import counted, say, shortened, show_rows
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, TopicRecord
    from sandq.model import health

TOGETHER = 8
"""Number of topics that are read in parallel."""
TRIES = 5
"""Minimum number of failed tries of an outbox to be reported. An outbox makes these tries in about two seconds."""
LETTERS = 1000
"""Maximum number of dead letters that are read for each group."""
SOON_DAYS = 30
"""A certificate that expires within this number of days is reported."""
DAY_S = 86_400
_ERROR_CHARS = 200
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


class Finding(NamedTuple):
    """A result: what was checked (`what`), what was found (`found`), and what to do (`todo`; empty if nothing)."""

    what: str
    state: str
    found: str
    todo: str = ""
    situation: str = ""
    """Name of the situation in the section "What needs attention" of docs/operations/alerts.md.

    Empty for other findings."""


@click.command()
@topics_option("Check only the groups, pushes and outboxes of this topic; may be repeated.  [default: all]")
@common_options
def doctor(topics: tuple[str, ...]) -> None:
    """Find problems of the cluster, and say what to do.

    It finds nodes that are down, certificates that expire soon, partitions without a leader, groups that get no
    messages, failing receivers of pushes, outboxes without progress, and dead letters that could not be sent.

    \b
      sandctl doctor
      sandctl doctor --topic orders -o json

    Each line is ok, warning or failed. The exit code is 1 if a line is failed.
    """

    async def work(client: Client) -> list[Finding]:
        import anyio

        from sandq.model import health

        info = await client.admin.cluster()
        records = {record.name: record for record in await client.admin.list_topics()}
        if topics:
            records = {name: await client.admin.topic(name) for name in dict.fromkeys(topics)}
        overview = await client.admin.overview()
        found: dict[str, list[Finding]] = {name: [] for name in records}
        limiter = anyio.CapacityLimiter(TOGETHER)

        async def fetch(record: TopicRecord) -> None:
            async with limiter:
                seen = overview.topics.get(record.name)
                oldest = {} if seen is None else {name: group.oldest_ms for name, group in seen.groups.items()}
                found[record.name] = await _of_topic(client, record, oldest)

        async with anyio.create_task_group() as tasks:
            for record in records.values():
                tasks.start_soon(fetch, record)
        all_of_it = [*_of_health(health.of_nodes(info)), *_certificates(client.certificate_ends, now_ms())]
        all_of_it += _of_health(_partitions(records.values()))
        replicas = {name: record.replicas for name, record in records.items()}
        all_of_it += _of_health(health.of_replicas(replicas, health.replica_nodes(info)))
        all_of_it += [finding for name in sorted(found) for finding in found[name]]
        return all_of_it + _fine(all_of_it, len(records))

    findings = run(work)
    if settings().output == "table":
        for finding in findings:
            word = click.style(f"{finding.state:<8}", fg=_COLOURS[finding.state])
            click.echo(f"{word} ", nl=False)
            say(f"{finding.what:<11} {finding.found}")
            if finding.todo:
                say(f"{'':<8} {'':<11} -> {finding.todo}")
        counts = Counter(finding.state for finding in findings)
        names = {"ok": "ok", "warning": "warning" if counts["warning"] == 1 else "warnings", "failed": "failed"}
        say(", ".join(f"{counts[state]} {name}" for state, name in names.items() if counts[state]))
    else:
        show_rows([finding._asdict() for finding in findings], {})
    if any(finding.state == "failed" for finding in findings):
        click.get_current_context().exit(1)


def _fine(findings: Iterable[Finding], topics: int) -> list[Finding]:
    """Return a line for each kind of object without problems."""
    named = {finding.what for finding in findings}
    where = {
        "nodes": "all are up",
        "replicas": "none is shut or differs",
        "partitions": f"all have a leader ({counted(topics, 'topic')})",
        "groups": "none is stopped",
        "pushes": "no receiver fails",
        "outboxes": "nothing is held up",
    }
    return [Finding(kind, "ok", where[kind]) for kind in where if kind not in named]


def _of_health(findings: Iterable[health.Finding]) -> Iterator[Finding]:
    for one in findings:
        yield Finding(one.what, one.state, one.found, one.todo, one.situation)


def _certificates(ends_s: Mapping[str, float], at_ms: int) -> Iterator[Finding]:
    """Check the certificates of the nodes that answered, if they use TLS."""
    for node, end_s in sorted(ends_s.items()):
        days = int((end_s - at_ms / 1000) // DAY_S)
        if days < SOON_DAYS:
            todo = "replace the files of its section tls: it loads them within seconds"
            yield Finding("certificates", "warning", f"that of {node} ends in {counted(days, 'day')}", todo)


def _partitions(records: Iterable[TopicRecord]) -> Iterator[health.Finding]:
    from sandq.model import health

    for record in records:
        without = sum(row.leader is None for row in record.partitions)
        yield from health.of_leaders(record.name, without, len(record.partitions))


async def _of_topic(client: Client, record: TopicRecord, oldest: Mapping[str, int | None]) -> list[Finding]:
    """Check the groups, pushes and outboxes of a topic."""
    from sandq.errors import SandqError
    from sandq.model import health

    name = record.name
    try:
        groups = await client.admin.groups(name)
        pushes = await client.admin.pushes(name)
        stats = await client.admin.stats(name)
        letters = [
            finding
            for group, reasons in _dead(groups).items()
            for finding in await _letters(client, record, group, reasons)
        ]
    except SandqError as error:
        return [Finding("groups", "failed", f"{name} could not be checked: {error.message}", "ask again in a moment")]
    found = [finding for group in _groups(name, groups, pushes, oldest) for finding in health.of_group(group, now_ms())]
    return [*_of_health(found), *_outboxes(name, stats), *letters]


def _groups(
    topic: str,
    rows: Sequence[Mapping[str, Any]],
    pushes: Sequence[Mapping[str, Any]],
    oldest: Mapping[str, int | None],
) -> Iterator[health.GroupHealth]:
    """Check the groups of a topic, over all partitions. `oldest`: by group, when its oldest message was due."""
    from sandq.model import health

    pushed = {push["group"]: push for push in pushes}
    by_group: dict[str, list[Mapping[str, Any]]] = {group: [] for group in pushed}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    for group, parts in sorted(by_group.items()):
        push = pushed.get(group, {})
        error = push.get("error")
        expired = [row.get("unfinished") or 0 for row in parts if row.get("expired")]
        yield health.GroupHealth(
            topic=topic,
            group=group,
            ready=sum(row.get("ready") or 0 for row in parts),
            leased=sum(row.get("leased") or 0 for row in parts),
            dead=sum(row.get("dead") or 0 for row in parts),
            consumers=max((row.get("consumers") or 0 for row in parts), default=0),
            reason=next((row["reason"] for row in parts if row.get("reason")), None),
            oldest_ms=oldest.get(group),
            push=push.get("state"),
            push_error=None if error is None else shortened(error, health.ERROR_CHARS),
            push_error_ms=push.get("error_ms") if push.get("targets") != "message" else None,
            unfinished=sum(expired) if expired else None,
        )


def _outboxes(topic: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        for stuck in row.get("outbox_stuck") or ():
            if stuck["tries"] < TRIES:
                continue
            to = f"partition {stuck['partition']} of {stuck['topic'] or 'a topic that is not known'}"
            found = (
                f"partition {row['partition']} of {topic}: {counted(row['outbox'], 'message')} to be sent, and {to} "
                f"has taken none in {stuck['tries']:,} tries: {shortened(stuck['error'], _ERROR_CHARS)}"
            )
            todo = "nothing is lost, and it continues by itself; check that partition: sandctl cluster partitions"
            yield Finding("outboxes", "failed", found, todo)


def _dead(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Return the number of dead letters of each kind in each group."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["group"], Counter()).update(row.get("dead_reasons") or {})
    return found


async def _letters(client: Client, record: TopicRecord, group: str, reasons: Counter[str]) -> list[Finding]:
    """Check dead letters that an ack should have sent, or that the dead letter topic refused."""
    topic, found = record.name, []
    if count := reasons["undeliverable"]:
        which = f"{topic} -g {group} --reason undeliverable"
        todo = (
            f"see why: sandctl dead list {which}; make what is missing, then: sandctl dead redrive {which}; or: "
            f"sandctl dead purge {which}"
        )
        what = f"{group} of {topic}: {counted(count, 'message')} that acks sent could not be delivered"
        found.append(Finding("outboxes", "failed", what, todo))
    target = record.settings.get("dead_letter_topic")
    if target and reasons.total() > reasons["undeliverable"]:
        letters = client.dead(topic, group).list(limit=LETTERS, values=False)
        refused = [letter.not_forwarded async for letter in letters if letter.not_forwarded is not None]
        if refused:
            what = (
                f"{group} of {topic}: {counted(len(refused), 'dead letter')} that {target} refused: "
                f"{shortened(refused[0], _ERROR_CHARS)}"
            )
            todo = f"correct that, then redrive them, or purge them: sandctl dead list {topic} -g {group}"
            found.append(Finding("outboxes", "failed", what, todo))
    return found
