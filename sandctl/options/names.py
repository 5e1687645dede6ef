"""Arguments and options that name topics, groups and nodes, and how a shell completes them: by asking the server.

A shell waits for the answer, so the server has COMPLETE_S; whatever goes wrong is no answer, and says nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sandq.client import Client

F = TypeVar("F", bound=Callable[..., Any])

COMPLETE_S = 0.5
ITEMS_MAX = 500


def topic_argument(name: str = "topic") -> Callable[[F], F]:
    """TOPIC, or NAME, of one that is there."""
    return click.argument(name, shell_complete=_topics)


def topics_argument(command: F) -> F:
    """TOPIC..., of those that are there, or a pattern of them, as `topics`."""
    return click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=_topics)(command)


def topic_option(text: str) -> Callable[[F], F]:
    """`--topic`, of commands that need none."""
    return click.option("--topic", metavar="TOPIC", help=text, shell_complete=_topics)


def topics_option(text: str) -> Callable[[F], F]:
    """`--topic`, which may be repeated, as `topics`."""
    return click.option("--topic", "topics", metavar="TOPIC", multiple=True, help=text, shell_complete=_topics)


def group_argument(command: F) -> F:
    """GROUP behind TOPIC, as `name`."""
    return click.argument("name", metavar="GROUP", shell_complete=_groups)(command)


def group_option(command: F) -> F:
    """`--group`."""
    return click.option("--group", "-g", required=True, help="The consumer group.", shell_complete=_groups)(command)


def schedule_argument(command: F) -> F:
    """NAME of a schedule behind TOPIC."""
    return click.argument("name", shell_complete=_schedules)(command)


def node_argument(command: F) -> F:
    """NODE, a registered one, as `node`."""
    return click.argument("node", shell_complete=_nodes)(command)


def _topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    async def work(client: Client) -> list[str]:
        return [record.name for record in await client.admin.list_topics()]

    return _matching(_ask(context, work), incomplete)


def _groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    # With an option that has no value yet, click stops before it has told which argument is which.
    # Of several topics those of the first.
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
    """Those that begin so; none that a terminal or a shell would take for something else."""
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

        with context:  # where the servers that were named on the line so far are kept
            return anyio.run(main)
    return []
