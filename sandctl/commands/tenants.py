"""`sandctl tenant`: the tenants of a fair topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.output.results import done, show_one

if TYPE_CHECKING:
    from sandq.client import Client, TopicRecord

_OF_TENANT = ("tenant", "ready", "in_flight", "max_in_flight", "weight", "rate", "burst", "free_ms")


@click.group(short_help="Show tenants of a fair topic; change weights and limits.")
def tenant() -> None:
    """Show the tenants of a fair topic; change their weights and limits."""


@tenant.command("list", short_help="Show the tenants of a topic, and their backlog by group.")
@topic_argument()
@common_options
def list_(topic: str) -> None:
    """Show the weights and limits of tenants of TOPIC, and their backlog in each group.

    \b
      sandctl tenant list mails
      sandctl tenant list mails -o json

    For each group and partition, the 100 tenants with the most ready messages are shown. Messages that became due after
    the last request of the consumers are not counted yet.
    """

    async def work(client: Client) -> tuple[TopicRecord, list[dict[str, Any]]]:
        return await _fair(client, topic), await client.admin.groups(topic)

    from sandq.model.rates import as_mapping

    record, groups = run(work)
    tenants = [
        {"group": row["group"], "partition": row["partition"], **{name: one.get(name) for name in _OF_TENANT}}
        for row in groups
        for one in row.get("tenants") or ()
    ]
    patterns = [{"pattern": pattern, **rule} for pattern, rule in as_mapping(record.settings["tenants"]).items()]
    show_one({"topic": topic, "patterns": patterns, "tenants": tenants})


@tenant.command("set", short_help="Change weight and limits of tenants.")
@topic_argument()
@click.argument("pattern")
@click.option("--weight", type=int, metavar="N", help="Turns for one turn of a tenant of weight 1: 1 to 1000.")
@click.option("--max-in-flight", metavar="N|none", help="Messages in flight per group.")
@click.option("--rate", metavar="N/s|none", help="Messages a second (N/s), minute (N/m), hour (N/h) or day (N/d).")
@click.option("--burst", type=int, metavar="N", help="Messages sent at a time after a pause.")
@click.option("--remove", is_flag=True, help="Remove the entry for PATTERN.")
@common_options
def set_(
    topic: str,
    pattern: str,
    weight: int | None,
    max_in_flight: str | None,
    rate: str | None,
    burst: int | None,
    remove: bool,
) -> None:
    """Change weight and limits of tenants of TOPIC: of one tenant by its name, of all with a prefix (acme.*), or of all
    (*).

    \b
      sandctl tenant set mails acme --weight 3
      sandctl tenant set mails 'acme.*' --max-in-flight 100
      sandctl tenant set mails '*' --rate 10/s --burst 20
      sandctl tenant set mails acme --remove

    Other settings stay. A new pattern begins with weight 1 and without limits. Changes apply from now
    on.
    """
    from sandq.model.rates import as_mapping

    changes: dict[str, Any] = {}
    if weight is not None:
        changes["weight"] = weight
    if max_in_flight is not None:
        changes["max_in_flight"] = _most(max_in_flight)
    if rate is not None:
        # A burst is part of a rate, so a new rate resets the burst.
        changes |= {"rate": rate, "burst": None}
    if burst is not None:
        changes["burst"] = burst
    if bool(changes) is remove:
        raise click.UsageError(
            "say what to change: --weight N, --max-in-flight N, --rate N/s, --burst N; or only --remove"
        )

    async def work(client: Client) -> TopicRecord:
        from sandq.errors import NotFound

        tenants: dict[str, Any] = as_mapping((await _fair(client, topic)).settings["tenants"])
        if not remove:
            tenants[pattern] = tenants.get(pattern, {}) | changes
        elif tenants.pop(pattern, None) is None:
            raise NotFound(f"topic {topic!r} has no entry for {pattern!r}")
        return await client.admin.update_topic(topic, tenants=tenants)

    found = as_mapping(run(work).settings["tenants"])
    if remove:
        done(f"removed {pattern} of {topic}", {"topic": topic, "pattern": pattern, "removed": True})
        return
    rule = found[pattern]
    most, rate = rule["max_in_flight"], rule["rate"]
    words = "any number of messages" if most is None else f"at most {most:,} messages"
    pace = "at any rate" if rate is None else f"at {rate}, {rule['burst']:,} at once"
    record = {"topic": topic, "pattern": pattern, **rule}
    done(f"{pattern} of {topic}: weight {rule['weight']}, {words} in flight, {pace}", record)


def _most(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is neither a number nor none", param_hint="--max-in-flight")
    return int(text)


async def _fair(client: Client, topic: str) -> TopicRecord:
    """Return the topic. Raises InvalidRequest if it has no tenants."""
    from sandq.errors import InvalidRequest

    record = await client.admin.topic(topic)
    if record.kind != "fair":
        raise InvalidRequest(f"topic {topic!r} is a {record.kind} topic; only fair topics have tenants")
    return record
