"""`sandctl group`: the consumer groups of a topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from sandctl.commands.push import push, push_of
from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, confirm_name, need_yes, yes_option
from sandctl.options.names import group_argument, topic_argument
from sandctl.options.times import DURATION, END, PLACE, F, end_text, limit_option, raw
from sandctl.options.topic_settings import group_options, settings_of, shown
from sandctl.output.records import consumer_record, key_cell, pause_record
from sandctl.output.results import done, show_one, show_rows
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, GroupConsumers, GroupPauses, PausedPart

_COUNTS = ("ready", "leased", "waiting", "dead")
_CONSUMER_COLUMNS = {
    "consumer": "CONSUMER",
    "address": "ADDRESS",
    "since": "SINCE",
    "partitions": "PARTITIONS",
    "credit": "CREDIT",
    "messages": "MESSAGES",
    "leased_at": "OLDEST",
}
_PAUSE_COLUMNS = {"part": "PART", "name": "NAME", "until": "UNTIL", "partitions": "PARTITIONS"}
_COLUMNS = {
    "group": "GROUP",
    "partition": "PARTITION",
    "cursor": "CURSOR",
    "committed": "COMMITTED",
    "ready": "READY",
    "blocked_by_key": "BLOCKED BY KEY",
    "leased": "LEASED",
    "waiting": "WAITING",
    "dead": "DEAD",
    "consumers": "CONSUMERS",
    "paused_tenants": "PAUSED TENANTS",
    "paused_keys": "PAUSED KEYS",
    "reason": "STOPPED BECAUSE",
}


def _part_options(command: F) -> F:
    """Add `--tenant` and `--key`, which name a part of a group."""
    command = click.option("--key", metavar="KEY", help="Only this key, in a topic that limits keys.")(command)
    return click.option("--tenant", metavar="T", help="Only this tenant, and those below it.")(command)


@click.group(short_help="Show, seek, change, limit, push, pause and delete groups.")
def group() -> None:
    """Show consumer groups; seek, change, limit, push, pause and delete them.

    A group exists from its first subscribe on (`sandctl consume TOPIC --group NAME`).
    """


group.add_command(push)


@group.command("list")
@topic_argument()
@limit_option
@common_options
def list_(topic: str, limit: int | None) -> None:
    """List the groups of TOPIC, a row for each partition.

    CURSOR is the last offset that was leased, COMMITTED the lowest offset that is not acked. BLOCKED BY KEY (in topics
    with a limit per key) is how many READY messages wait until fewer messages of their keys are in flight. PAUSED
    TENANTS and PAUSED KEYS are shown if there are any: `sandctl group pauses` lists them.

    \b
      sandctl group list orders
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.admin.groups(topic)

    rows = [_readable(row) for row in run(work)]
    show_rows(rows, _columns(rows), limit)


@group.command(short_help="Show one group: settings, lag, position in each partition.")
@topic_argument()
@group_argument
@common_options
def show(topic: str, name: str) -> None:
    """Show one group of TOPIC: its settings, its backlog, and its position in each partition.

    \b
      sandctl group show orders billing
    """
    rows, pushes = _rows_of(topic, name)
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(row.get("dead_reasons") or {})
    own = next((row["settings"] for row in rows if row.get("settings")), None)
    record = {
        "group": name,
        "topic": topic,
        "settings": "the topic's" if own is None and settings().output == "table" else own,
        **_limits(rows),
        **push_of(pushes, name),
        # Each consumer subscribes to every partition: a sum would count it repeatedly.
        "consumers": max((row.get("consumers") or 0 for row in rows), default=0),
        **{count: sum(row.get(count) or 0 for row in rows) for count in _COUNTS},
        **_blocked(rows),
        **_paused_parts(rows),
        "unfinished": sum(row.get("unfinished") or 0 for row in rows),
        **_dropped(rows),
        **({"expired": True} if any(row.get("expired") for row in rows) else {}),
        "dead_reasons": dict(reasons) if reasons or settings().output != "table" else None,
        "partitions": [
            {key: row.get(key) for key in _columns(rows) if key != "group"}
            if settings().output == "table"
            else {key: value for key, value in row.items() if key not in ("group", "settings", "limits")}
            | _limits_here(row)
            for row in rows
        ],
    }
    show_one(record)


def _dropped(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many expired messages the group has dropped, and how many of its dead letters were removed. A table
    leaves out zeros."""
    counts = {name: sum(row.get(name) or 0 for row in rows) for name in ("dropped", "dead_removed")}
    return {name: count for name, count in counts.items() if count or settings().output != "table"}


@group.command(short_help="List the consumers of a group, and their messages.")
@topic_argument()
@group_argument
@limit_option
@common_options
def consumers(topic: str, name: str, limit: int | None) -> None:
    """List the consumers of a group of TOPIC, those with the most messages first.

    \b
      sandctl group consumers orders billing

    MESSAGES is how many messages a consumer holds, OLDEST is when the first of them was leased, and CREDIT is how many
    it can still receive. A consumer without an address leases by requests (HTTP, `sandctl lease`).
    """

    async def work(client: Client) -> GroupConsumers:
        return await client.admin.consumers(topic, name)

    found = run(work)
    rows = [consumer_record(row) for row in found.consumers]
    show_rows(rows, _CONSUMER_COLUMNS, limit)
    if found.left_out:
        click.echo(f"sandctl: {found.left_out:,} consumers more are not shown", err=True)


@group.command(short_help="List the paused tenants and keys of a group.")
@topic_argument()
@group_argument
@limit_option
@common_options
def pauses(topic: str, name: str, limit: int | None) -> None:
    """List the paused tenants and keys of a group of TOPIC, with the ends of their pauses.

    \b
      sandctl group pauses mails sender
      sandctl group pauses mails sender -o json

    PARTITIONS is the number of partitions in which the tenant or key is paused. A pause of a tenant includes the
    tenants below it. `sandctl group list` shows whether the whole group is paused.
    """

    async def work(client: Client) -> GroupPauses:
        return await client.admin.pauses(topic, name)

    found = run(work)
    rows = [pause_record(row) for row in found.pauses]
    if settings().output == "table":
        rows = [record | _pause_cells(row, record) for row, record in zip(found.pauses, rows, strict=True)]
    show_rows(rows, _PAUSE_COLUMNS, limit)
    if found.left_out:
        click.echo(f"sandctl: {found.left_out:,} paused tenants and keys more are not shown", err=True)


def _pause_cells(row: PausedPart, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name and the end of a pause as cells of a table."""
    name = row.tenant if row.tenant is not None else key_cell(row.key)
    return {
        "name": "(a key above 1,024 bytes)" if name is None else name,
        "until": record["paused_until"] or "it is resumed",
    }


@group.command(short_help="Move a group to another position of TOPIC.")
@topic_argument()
@group_argument
@click.option(
    "--to", type=PLACE, required=True, metavar="PLACE", help="New position: earliest, latest, an instant, or an offset."
)
@yes_option
@common_options
def seek(topic: str, name: str, to: str | int, yes: bool) -> None:
    """Move a group to another position of TOPIC, in all partitions.

    \b
      sandctl group seek orders billing --to earliest
      sandctl group seek orders billing --to -2h
      sandctl group seek orders billing --to 2030-01-31T08:00:00Z --yes

    If the group moves back, messages that it acked after the new position are delivered again if they are still
    stored. If it moves forward, skipped messages count as acked. Leases of its consumers are revoked.
    """
    if not yes:
        need_yes("a seek delivers messages again, or skips them")
        where = _place(to)
        confirm(f"Have group {name} of {topic} begin at {where}? Messages in flight are taken back.", "changed")

    async def work(client: Client) -> dict[int, str]:
        return await client.admin.seek_group(topic, name, to)

    rows = [{"partition": partition, "cursor": cursor} for partition, cursor in run(work).items()]
    if settings().output == "table":
        click.echo(f"group {name} begins at {_place(to)}", err=True)
    show_rows(rows, {"partition": "PARTITION", "cursor": "CURSOR"})


@group.command(short_help="Change the group's own settings.")
@topic_argument()
@group_argument
@group_options()
@click.option("--reset", is_flag=True, help="Remove its own settings: the topic's apply again.")
@common_options
def update(topic: str, name: str, reset: bool, **options: Any) -> None:
    """Set the group's own settings. All other settings come from the topic.

    \b
      sandctl group update orders billing --max-attempts 3 --backoff fixed --backoff-first 5s
      sandctl group update orders billing --max-in-flight-per-key 2
      sandctl group update orders billing --reset

    The back-off is replaced as a whole. Parts that are not given get their defaults: exponential, first 1s, factor 2,
    cap 10m, jitter 20%.
    """
    given = settings_of(options)
    if reset and given:
        raise click.UsageError("--reset cannot be combined with settings")
    if not reset and not given:
        raise click.UsageError("nothing to change: give settings, or --reset")

    async def work(client: Client) -> None:
        await client.admin.update_group(topic, name, **given)

    run(work)
    done(f"updated group {name} of {topic}", {"group": name, "topic": topic, "settings": given or None})


@group.command(short_help="Limit the messages in flight of a group, and its rate.")
@topic_argument()
@group_argument
@click.option(
    "--max-in-flight", metavar="N", type=int, help="Maximum number of messages that are leased and not settled."
)
@click.option(
    "--rate", metavar="N/s", help="Maximum number of messages per second (N/s), minute (N/m), hour (N/h), day (N/d)."
)
@click.option("--burst", metavar="N", type=int, help="Number of these messages at once after a pause.")
@click.option("--unit", metavar="NAME", help="The rate and the burst count costs of messages, for example tokens.")
@click.option("--limit", metavar="NAME", help="Use a limit that groups of several topics share (sandctl limit set).")
@click.option("--none", "is_none", is_flag=True, help="Remove all limits.")
@common_options
def limit(topic: str, name: str, is_none: bool, **options: Any) -> None:
    """Limit a group over all partitions of TOPIC; a limit that is not given is removed.

    \b
      sandctl group limit orders billing --max-in-flight 10
      sandctl group limit orders billing --rate 50/s --burst 10
      sandctl group limit prompts workers --rate 90000/m --unit tokens
      sandctl group limit prompts workers --limit llm
      sandctl group limit orders billing --none

    The group need not exist yet. Its consumers keep their leases: a lower limit takes effect as they settle them.
    """
    given = {option: value for option, value in options.items() if value is not None}
    if bool(given) is is_none:
        raise click.UsageError(
            "nothing to change: give --max-in-flight N, --rate N/s, --burst N, --unit NAME; or --limit NAME; "
            "or --none, without these"
        )

    async def work(client: Client) -> None:
        await client.admin.limit_group(topic, name, **given)

    run(work)
    text = f"group {name} of {topic} has no limits" if is_none else f"limited group {name} of {topic}"
    done(text, {"group": name, "topic": topic, "limits": given or None})


@group.command(short_help="Stop deliveries to a group, up to an end or until it is resumed.")
@topic_argument()
@group_argument
@click.option(
    "--until", type=END, metavar="END", help="When the pause ends: an instant, or 18:00 (the next, on this machine)."
)
@click.option("--for", "for_", type=DURATION, metavar="DURATION", help="Duration of the pause.")
@_part_options
@common_options
def pause(
    topic: str, name: str, until: int | None, for_: timedelta | None, tenant: str | None, key: str | None
) -> None:
    """Stop deliveries to a group of TOPIC until it is resumed, or up to an end.

    \b
      sandctl group pause orders billing
      sandctl group pause orders billing --for 10m
      sandctl group pause orders billing --until 18:00
      sandctl group pause mails sender --tenant acme.eu --for 10m
      sandctl group pause payments booking --key customer-7 --for 10m

    A further pause replaces the first one, with its end. A tenant or key can be paused before its first message.
    Its consumers keep their leases, and can ack. Messages become due and wait; messages with a ttl expire meanwhile.
    The group stays paused across restarts, and does not expire without consumers.
    """
    if until is not None and for_ is not None:
        raise click.UsageError("--until and --for are both given: give one of them")
    end: dict[str, Any] = {name: value for name, value in (("until", until), ("for_", for_)) if value is not None}

    part = _part(tenant, key)

    async def work(client: Client) -> None:
        await client.admin.pause_group(topic, name, **part, **end)

    run(work)
    record = {"group": name, "topic": topic, "paused": True, **_named(tenant, key)}
    done(f"paused {_part_text(tenant, key)}group {name} of {topic}{end_text(until, for_)}", record)


@group.command(short_help="Resume a paused group.")
@topic_argument()
@group_argument
@_part_options
@common_options
def resume(topic: str, name: str, tenant: str | None, key: str | None) -> None:
    """Resume deliveries to a group of TOPIC; messages that became due meanwhile come first.

    \b
      sandctl group resume orders billing
      sandctl group resume mails sender --tenant acme.eu
    """
    part = _part(tenant, key)

    async def work(client: Client) -> None:
        await client.admin.resume_group(topic, name, **part)

    run(work)
    record = {"group": name, "topic": topic, "paused": False, **_named(tenant, key)}
    done(f"resumed {_part_text(tenant, key)}group {name} of {topic}", record)


@group.command(short_help="Delete a group: its position, its leases, its dead letters.")
@topic_argument()
@group_argument
@click.option("--force", is_flag=True, help="Also delete its unfinished messages: they are lost.")
@yes_option
@common_options
def delete(topic: str, name: str, force: bool, yes: bool) -> None:
    """Delete a group of TOPIC: its position and its dead letters.

    \b
      sandctl group delete orders billing

    The command fails while the group has consumers. It also fails while the group has messages that are leased,
    retrying or blocked by their keys; --force deletes these messages, too. A consumer that subscribes afterwards
    creates a new group, at its --start.
    """
    if not yes:
        lost = (
            "its position, its dead letters and its unfinished messages" if force else "its position and dead letters"
        )
        need_yes(f"deleting a group deletes {lost}")
        confirm_name(name, f"This deletes group {name} of {topic} with {lost}", "deleted")

    async def work(client: Client) -> None:
        await client.admin.delete_group(topic, name, force=force)

    run(work)
    done(f"deleted group {name} of {topic}", {"deleted": name, "topic": topic})


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the columns of a table with these rows."""
    left_out = {"paused_tenants", "paused_keys"}
    left_out -= {name for name in left_out if any(row.get(name) for row in rows)}
    if all(row.get("blocked_by_key") is None for row in rows):
        left_out.add("blocked_by_key")
    return {key: heading for key, heading in _COLUMNS.items() if key not in left_out}


def _blocked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many messages are blocked by their keys, over all partitions. Empty in topics without a limit per
    key."""
    from sandq.client.json_format import blocked_by_key_of_rows

    found = blocked_by_key_of_rows(rows)
    return {} if found is None else {"blocked_by_key": found}


def _paused_parts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many tenants and keys are paused, in the partition with most of them. Empty if none is."""
    found = {name: max((row.get(name) or 0 for row in rows), default=0) for name in ("paused_tenants", "paused_keys")}
    return {name: count for name, count in found.items() if count}


def _limits(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the group's limits over all partitions. Empty for a group without limits."""
    from sandq.client.json_format import group_limits_of_rows

    found = group_limits_of_rows(rows)
    if found is None:
        return {}
    if settings().output != "table":
        return {"limits": found}
    words = [f"those of {found['limit']}"] if "limit" in found else []
    if found["max_in_flight"] is not None:
        given = f", {found['given']} given" if found["given"] is not None else ""
        words.append(f"{found['max_in_flight']} in flight ({found['in_flight']} are{given})")
    if found["rate"] is not None:
        unit = f" {found['unit']}" if found.get("unit") is not None else ""
        words.append(f"{found['rate']}{unit}, {found['burst']} at once")
    return {"limits": "; ".join(words)}


def _limits_here(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current allowance of a partition."""
    limits = row.get("limits")
    return {} if limits is None else {name: limits.get(name) for name in ("allowed", "allowed_burst")}


def _part(tenant: str | None, key: str | None) -> dict[str, Any]:
    """Return the tenant or key of a pause, as the client takes it. Raise UsageError if both are given."""
    if tenant is not None and key is not None:
        raise click.UsageError("--tenant and --key are both given: give one of them")
    return _named(tenant, None) if key is None else {"key": raw(key)}


def _named(tenant: str | None, key: str | None) -> dict[str, str]:
    """Return the tenant or key that was given, by name."""
    return {name: value for name, value in (("tenant", tenant), ("key", key)) if value is not None}


def _part_text(tenant: str | None, key: str | None) -> str:
    """Return "tenant NAME of " or "key NAME of ". Empty for a whole group."""
    return "".join(f"{name} {value} of " for name, value in _named(tenant, key).items())


def _rows_of(topic: str, name: str) -> tuple[Sequence[Mapping[str, Any]], list[dict[str, Any]]]:
    """Return the rows of one group, and the pushed groups. Raise UnknownGroup if there is no such group."""
    from sandq.errors import InvalidRequest, UnknownGroup

    async def work(client: Client) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        rows, pushes = await client.admin.groups(topic), list[dict[str, Any]]()
        with suppress(InvalidRequest):  # a server of an older version does not report pushes
            pushes = await client.admin.pushes(topic)
        return rows, pushes

    found, pushes = run(work)
    rows = [_readable(row) for row in found if row.get("group") == name]
    if not rows:
        raise UnknownGroup(f"topic {topic!r} has no group {name!r}")
    return rows, pushes


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its settings in the units of options."""
    own = row.get("settings")
    return {**row, "settings": shown(own) if own else None}


def _place(to: str | int) -> str:
    from sandq.model.times import format_instant

    return format_instant(to) if isinstance(to, int) else to
