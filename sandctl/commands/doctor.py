"""`sandctl doctor`: what goes wrong in a cluster, and what to do about it.

It only asks. Whether a node can run on a machine is what `sandq doctor` tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sandctl.options.common import common_options, run, settings
from sandctl.options.names import topics_option
from sandctl.options.times import now_ms
from sandctl.output.results import counted, say, shortened, show_rows

if TYPE_CHECKING:
    from sandq.client import Client, TopicRecord

TOGETHER = 8
"""Topics that are asked about at a time."""
RECENT_MS = 5 * 60_000
"""A receiver that has failed since is told of, also while it takes other messages."""
TRIES = 5
"""Of a batch of an outbox, in about two seconds: then it is told of."""
LETTERS = 1000
"""Dead letters of a group that are looked at."""
SOON_DAYS = 30
"""A certificate that ends so soon is told of."""
DAY_S = 86_400
_ERROR_CHARS = 200
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


class Finding(NamedTuple):
    """`what` was looked at, what was `found`, and what to do about it (empty: nothing)."""

    what: str
    state: str
    found: str
    todo: str = ""


@click.command()
@topics_option("Look at the groups, pushes and outboxes of this topic alone; may be repeated.  [default: all]")
@common_options
def doctor(topics: tuple[str, ...]) -> None:
    """Look for what goes wrong in the cluster, and say what to do.

    That is nodes that are down, certificates that end soon, partitions without a leader, groups that get nothing,
    receivers of pushes that fail, outboxes that do not move, and dead letters that could not be sent.

    \b
      sandctl doctor
      sandctl doctor --topic orders -o json

    Each line is ok, warning or failed. The exit code is 1 when one is failed.
    """

    async def work(client: Client) -> list[Finding]:
        import anyio

        info = await client.admin.cluster()
        records = {record.name: record for record in await client.admin.list_topics()}
        if topics:
            records = {name: await client.admin.topic(name) for name in dict.fromkeys(topics)}
        found: dict[str, list[Finding]] = {name: [] for name in records}
        room = anyio.CapacityLimiter(TOGETHER)

        async def look(record: TopicRecord) -> None:
            async with room:
                found[record.name] = await _of_topic(client, record)

        async with anyio.create_task_group() as tasks:
            for record in records.values():
                tasks.start_soon(look, record)
        all_of_it = [*_nodes(info), *_certificates(client.certificate_ends, now_ms()), *_partitions(records.values())]
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


_KINDS = ("nodes", "partitions", "groups", "pushes", "outboxes")


def _fine(findings: Iterable[Finding], topics: int) -> list[Finding]:
    """A line for each kind of thing of which nothing is wrong."""
    named = {finding.what for finding in findings}
    where = {"nodes": "all are up", "partitions": f"all have a leader ({counted(topics, 'topic')})"}
    where |= {"groups": "none is stopped", "pushes": "no receiver fails", "outboxes": "nothing is held up"}
    return [Finding(kind, "ok", where[kind]) for kind in _KINDS if kind not in named]


def _nodes(info: Mapping[str, Any]) -> Iterator[Finding]:
    if info.get("waiting"):
        todo = "start the others, or found it: sandctl cluster init"
        yield Finding("nodes", "failed", f"{info['node']} belongs to no cluster yet: {info['waiting']}", todo)
    for row in info.get("nodes") or ():
        if row.get("sick"):
            yield Finding("nodes", "failed", f"{row['node']} is sick: {row['sick']}", "see to its disk, or replace it")
        elif not row.get("up"):
            todo = "start it; if it does not come back: sandctl cluster remove"
            yield Finding("nodes", "failed", f"{row['node']} cannot be reached by {info['node']}", todo)
    for name, todo in (
        ("storage_failed", "see to its disk, and start it again"),
        ("no_room", "make room on its disk: docs/operations.md"),
        ("clock_alarm", "set its clock right: sandctl cluster clock"),
    ):
        if info.get(name):
            more = "" if info[name] is True else f": {info[name]}"
            yield Finding("nodes", "failed", f"{info['node']} says {name.replace('_', ' ')}{more}", todo)
    for port in info.get("exposed") or ():
        yield Finding("nodes", "warning", f"{info['node']} is open to anybody: {port}", "docs/security.md")
    if info.get("feature_level_next"):
        reachable, level = info["feature_level_next"], info["feature_level"]
        found = f"all nodes know feature level {reachable}, and the cluster is at {level}"
        todo = "once nobody is to go back to the version before: sandctl cluster finalize"
        yield Finding("nodes", "warning", found, todo)
    for one in info.get("shut") or ():
        where = f"partition {one['partition']} of {one['topic']}" if one["topic"] else "the metadata"
        what = f"the replica of {where} at {one['node']} is shut: {one['error']}"
        yield Finding("partitions", "failed", what, "sandctl partition shut (docs/operations.md, Shut partitions)")
    for one in info.get("different") or ():
        where = f"partition {one['partition']} of {one['topic']}"
        nodes = ", ".join(one["nodes"])
        todo = f"sandctl cluster rebuild {one['topic']} {one['partition']} NODE (docs/operations.md)"
        yield Finding("nodes", "failed", f"the replica of {where} at {nodes} is not what the others are", todo)


def _certificates(ends_s: Mapping[str, float], at_ms: int) -> Iterator[Finding]:
    """Of the nodes that were asked, where they speak TLS."""
    for node, end_s in sorted(ends_s.items()):
        days = int((end_s - at_ms / 1000) // DAY_S)
        if days < SOON_DAYS:
            todo = "replace the files that its tls section names: it reads them within seconds"
            yield Finding("certificates", "warning", f"that of {node} ends in {counted(days, 'day')}", todo)


def _partitions(records: Iterable[TopicRecord]) -> Iterator[Finding]:
    for record in records:
        unled = [row.partition for row in record.partitions if row.leader is None]
        if unled:
            what = "partition" if len(unled) == 1 else "partitions"
            found = f"{what} {', '.join(map(str, unled))} of {record.name}: no leader"
            yield Finding("partitions", "failed", found, "see which nodes hold them: sandctl cluster partitions")


async def _of_topic(client: Client, record: TopicRecord) -> list[Finding]:
    """Of its groups, pushes and outboxes."""
    from sandq.errors import SandqError

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
        return [Finding("groups", "failed", f"{name} could not be looked at: {error.message}", "ask again in a moment")]
    pushed = {push["group"] for push in pushes}
    return [*_groups(name, groups, pushed), *_pushes(name, pushes), *_outboxes(name, stats), *letters]


def _groups(topic: str, rows: Sequence[Mapping[str, Any]], pushed: set[str]) -> Iterator[Finding]:
    ready: Counter[str] = Counter()
    consumers: Counter[str] = Counter()
    expired: Counter[str] = Counter()
    told: set[tuple[str, str]] = set()
    for row in rows:
        group, reason = row["group"], row.get("reason")
        ready[group] += row.get("ready") or 0
        consumers[group] += row.get("consumers") or 0
        if row.get("expired"):
            expired[group] += row.get("unfinished") or 0
        if reason and (group, reason) not in told:
            told.add((group, reason))
            todo = f"sandctl group show {topic} {group} says more; a paused one: sandctl group resume {topic} {group}"
            yield Finding("groups", "warning", f"{group} of {topic} gets nothing: {reason}", todo)
    for group, count in expired.items():
        todo = f"start its consumers; if nobody needs these messages: sandctl group delete {topic} {group} --force"
        kept = f"it keeps {counted(count, 'message')} that it has yet to finish, and no others"
        yield Finding("groups", "warning", f"{group} of {topic} has expired (group_ttl): {kept}", todo)
    for group, count in ready.items():
        if count and not consumers[group] and group not in pushed and group not in expired:
            todo = f"start its consumers; if nobody needs it: sandctl group delete {topic} {group}"
            found = f"{group} of {topic}: {counted(count, 'message')} ready, and no consumer is connected"
            yield Finding("groups", "warning", found, todo)


def _pushes(topic: str, pushes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for push in pushes:
        group, error = push["group"], shortened(push["error"] or "it did not say why", _ERROR_CHARS)
        where = f"{group} of {topic}: {push['url']}"
        see = f"sandctl group push show {topic} {group}"
        if push["state"] in ("waiting", "probing"):
            found = f"{where} fails at everything and is left alone, with a probe now and then: {error}"
            todo = (
                "mend the receiver, it is found again within a minute; messages wait, and but for the probe use no "
                f"attempts ({see})"
            )
            yield Finding("pushes", "failed", found, todo)
        elif push["state"] == "looking" and push["error"]:
            todo = f"correct the URL (sandctl group push set), or allow it (push.allow of the nodes); {see}"
            yield Finding("pushes", "failed", f"{where} cannot be reached: {error}", todo)
        elif push["error_ms"] is not None and push["error_ms"] > now_ms() - RECENT_MS:
            todo = f"see what the receiver says of it; {see}; sandctl dead list {topic} -g {group}"
            yield Finding("pushes", "warning", f"{where} failed lately: {error}", todo)


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
            todo = "nothing is lost, and it goes on by itself; see to that partition: sandctl cluster partitions"
            yield Finding("outboxes", "failed", found, todo)


def _dead(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """How many dead letters of what each group has."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["group"], Counter()).update(row.get("dead_reasons") or {})
    return found


async def _letters(client: Client, record: TopicRecord, group: str, reasons: Counter[str]) -> list[Finding]:
    """Of dead letters that an ack was to send, or that the dead letter topic refused."""
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
