"""`sandctl cluster`: nodes, and the guarded clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.output import done, show_one
from sandctl.settings import common_options, run

if TYPE_CHECKING:
    from sandq.client import Client


@click.group()
def cluster() -> None:
    """Look at the cluster; let it accept a stepped clock."""


@cluster.command()
@common_options
def info() -> None:
    """Show the cluster as the server sees it."""

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.cluster()

    show_one(run(work))


@cluster.group(invoke_without_command=True)
@common_options
@click.pass_context
def clock(context: click.Context) -> None:
    """Show the node's guarded clock, or accept a step of its wall clock."""
    if context.invoked_subcommand is None:
        context.invoke(show)


@clock.command()
@common_options
def show() -> None:
    """Show the guarded clock beside the wall clock."""
    show_one(_clock(accept=False))


@clock.command()
@common_options
def accept() -> None:
    """Follow the wall clock although it stepped: it is right, and the guarded clock was wrong."""
    state = _clock(accept=True)
    done(f"the guarded clock is now {state['guarded']}", state)


def _clock(*, accept: bool) -> dict[str, Any]:
    from sandq.model.times import format_instant

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.clock(accept=accept)

    state = run(work)
    instants = {
        name: format_instant(state[f"{name}_ms"])
        for name in ("guarded", "wall")
        if isinstance(state.get(f"{name}_ms"), int)
    }
    return {"guarded": None, **instants, **state}
