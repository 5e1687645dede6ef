"""Arguments and options that name topics, groups and nodes. Shells complete them by asking the server.

A shell waits for the completion, so the server must answer within COMPLETE_S. After any failure, there are no
completions and no message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from sandq.client import Client

F = TypeVar("F", bound=Callable[..., Any])

COMPLETE_S = 0.5
ITEMS_MAX = 500


def topic_argument(name: str = "topic") -> Callable[[F], F]:
    """Add TOPIC (or NAME), an existing topic."""
    return click.argument(name, shell_complete=_topics)


def topics_argument(command: F) -> F:
    """Add TOPIC..., existing topics or a pattern, as `topics`. The last word may be a group."""
    metavar = "TOPIC... [GROUP]"
    return click.argument("topics", metavar=metavar, nargs=-1, required=True, shell_complete=_topics)(command)


def topic_option(text: str) -> Callable[[F], F]:
    """Add `--topic`, for commands that do not need a topic."""
    return click.option("--topic", metavar="TOPIC", help=text, shell_complete=_topics)


def topics_option(text: str) -> Callable[[F], F]:
    """Add `--topic`, which may be repeated, as `topics`."""
    return click.option("--topic", "topics", metavar="TOPIC", multiple=True, help=text, shell_complete=_topics)


def group_argument(command: F) -> F:
    """Add GROUP after TOPIC, or `--group GROUP`, as `name`."""
    return _group(command, "name")


def group_option(command: F) -> F:
    """Add `--group GROUP`, or GROUP after TOPIC, as `group`."""
    return _group(command, "group")


def _group(command: F, name: str) -> F:
    @wraps(command)
    def with_group(*, group_named: str | None, group_given: str | None, **others: Any) -> Any:
        return command(**{name: one_group(group_named, group_given)}, **others)

    options = click.argument("group_named", metavar="[GROUP]", required=False, shell_complete=_groups)(with_group)
    return cast("F", group_only_option(options))


def group_only_option(command: F) -> F:
    """Add `--group` as `group_given`, for commands that read a positional GROUP themselves."""
    text = "The consumer group, if it does not follow TOPIC."
    return click.option("--group", "-g", "group_given", metavar="GROUP", help=text, shell_complete=_groups)(command)


def one_group(named: str | None, given: str | None) -> str:
    """Return the group, from the argument or `--group`. Raises UsageError unless exactly one of them is given."""
    if named is not None and given is not None:
        raise click.UsageError(f"the group is given twice, as {named!r} and by --group: once is enough")
    found = named if given is None else given
    if found is None:
        raise click.UsageError("name the group: GROUP after TOPIC, or --group GROUP")
    return found


def schedule_argument(command: F) -> F:
    """Add NAME, a schedule, after TOPIC."""
    return click.argument("name", shell_complete=_schedules)(command)


def node_argument(command: F) -> F:
    """Add NODE, a registered node, as `node`."""
    return click.argument("node", shell_complete=_nodes)(command)


def _topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    async def work(client: Client) -> list[str]:
        return [record.name for record in await client.admin.list_topics()]

    return _matching(_ask(context, work), incomplete)


def _groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    # If an option still lacks its value, click stops before it assigns arguments.
    # Of several topics, complete groups of the first.
    topic = context.params.get("topic") or next(iter(context.params.get("topics") or context.args), None)
    if not isinstance(topic, str):
        return []

    async def work(client: Client) -> list[str]:
        return sorted({str(row["group"]) for row in await client.admin.groups(topic)})

    return _matching(_ask(context, work), incomplete)


def _schedules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    topic = context.params.get("topic") or next(iter(context.args), None)
    if not isinstance(topic, str):
        return []

    async def work(client: Client) -> list[str]:
        rows = client.schedules(topic).list(prefix=incomplete, limit=ITEMS_MAX)
        return list(dict.fromkeys([row.name async for row in rows]))

    return _matching(_ask(context, work), incomplete)


def _nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    async def work(client: Client) -> list[str]:
        return [str(row.get("node")) for row in (await client.admin.cluster()).get("nodes") or ()]

    return _matching(_ask(context, work), incomplete)


def _matching(names: list[str], incomplete: str) -> list[str]:
    """Return the names that begin with `incomplete`. Omit names that a terminal or shell would interpret."""
    fine = [name for name in names if name.startswith(incomplete) and name.isprintable() and " " not in name]
    return fine[:ITEMS_MAX]


def _ask(context: click.Context, work: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    with contextlib.suppress(Exception):
        import logging

        import anyio

        from sandctl.options.common import connected

        logging.disable()

        async def main() -> list[str]:
            with anyio.fail_after(COMPLETE_S):
                async with connected() as client:
                    return await work(client)

        with context:  # its parameters name the servers
            return anyio.run(main)
    return []
