"""`sandctl cluster drain`, `remove`, `transfer` and `rebuild`: change which nodes hold and lead partitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from sandctl.options.common import common_options, options_of_all, run
from sandctl.options.confirmation import confirm_name, need_yes, yes_option
from sandctl.options.names import node_argument, topic_argument
from sandctl.options.times import DURATION
from sandctl.output.progress import Progress
from sandctl.output.results import counted, done, say

if TYPE_CHECKING:
    from sandq.client import Client

F = TypeVar("F", bound=Callable[..., Any])

POLL_S: Final = 0.3
"""Interval at which the progress is read, in s."""
LEADER_S: Final = 5.0
"""Time limit in s for an answer of the last known leader of the metadata group. Then another node is asked."""


def wait_options(command: F) -> F:
    """`--wait/--no-wait`, `--timeout`."""
    command = click.option(
        "--timeout",
        type=DURATION,
        metavar="DURATION",
        help="Maximum time to wait; the work continues in any case.  [default: no limit]",
    )(command)
    return click.option("--wait/--no-wait", default=True, show_default=True, help="Whether to wait for the end.")(
        command
    )


@click.command(short_help="Move everything away from a node.")
@node_argument
@click.option("--undo", is_flag=True, help="Let it hold partitions again.")
@wait_options
@options_of_all
def drain(node: str, undo: bool, wait: bool, timeout: timedelta | None) -> None:
    """Move everything away from NODE: its replicas, its leaderships and its vote.

    \b
      sandctl cluster drain node4
      sandctl cluster drain node4 --undo

    The node stays registered and serves clients. Once it is drained, it can be stopped or removed.
    """

    async def work(client: Client) -> Standing | None:
        if undo or not wait:
            await client.admin.drain_node(node, undo=undo)
            return None
        leader = _Leader(client)
        before = _standing(node, await leader.fetch())
        await client.admin.drain_node(node)
        return await _until(leader, node, before, timeout, _is_drained)

    left = run(work, waits=True)
    record: dict[str, Any] = {"node": node, "standing": "in" if undo else "draining"}
    if undo:
        done(f"{node} is in use again", record)
    elif not wait:
        done(f"{node} is being drained", record)
    elif left is None:
        done(f"{node} was removed in the meantime", {**record, "standing": None})
    else:
        done(f"{node} is drained: it holds no replicas", {**record, "replicas": left.replicas})


@click.command()
@node_argument
@yes_option
@wait_options
@options_of_all
def remove(node: str, yes: bool, wait: bool, timeout: timedelta | None) -> None:
    """Make the cluster forget NODE, which was drained or has failed.

    \b
      sandctl cluster remove node4 --yes

    Replicas of a failed node are first copied to other nodes. Its data directory must never be used again. To add the
    machine again, start the node with an empty data directory.
    """
    if not yes:
        need_yes("removing a node cannot be undone")
        confirm_name(node, f"The cluster forgets {node}, and its data directory becomes useless", "removed")

    async def work(client: Client) -> None:
        if not wait:
            return await client.admin.remove_node(node)
        leader = _Leader(client)
        before = _standing(node, await leader.fetch())
        await client.admin.remove_node(node)
        await _until(leader, node, before, timeout, lambda standing: False)

    run(work, waits=True)
    done(f"{node} is {'' if wait else 'being '}removed", {"node": node, "standing": None if wait else "removing"})


@click.command()
@topic_argument()
@click.argument("partition", type=int)
@node_argument
@common_options
def transfer(topic: str, partition: int, node: str) -> None:
    """Make NODE, which holds PARTITION of TOPIC, its leader.

    \b
      sandctl cluster transfer orders 0 node2
    """

    async def work(client: Client) -> None:
        await client.admin.transfer(topic, partition, node)

    run(work)
    done(f"{node} leads partition {partition} of {topic}", {"topic": topic, "partition": partition, "leader": node})


@click.command(short_help="Rebuild the replica of a partition on a node.")
@topic_argument()
@click.argument("partition", type=int)
@node_argument
@common_options
def rebuild(topic: str, partition: int, node: str) -> None:
    """Make NODE drop its replica of PARTITION of TOPIC, and copy it again from the other nodes.

    \b
      sandctl cluster rebuild orders 0 node2

    Use it for a replica that differs from the other replicas. A node reports the difference in its log and in `cluster
    info` (different).
    """

    async def work(client: Client) -> None:
        await client.admin.rebuild(topic, partition, node)

    run(work)
    told = {"topic": topic, "partition": partition, "node": node}
    done(f"{node} rebuilds its replica of partition {partition} of {topic}", told)


# -- waiting ----------------------------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """A node in the metadata of the cluster."""

    standing: str
    replicas: int
    """Number of replicas that it should hold, or may still hold."""
    votes: bool
    store: str | None
    """UUID of its data directory. A node with a different UUID is a different node under the same name."""


def _is_drained(node: Standing) -> bool:
    return node.standing == "draining" and not node.replicas and not node.votes


async def _until(
    leader: _Leader,
    node: str,
    before: Standing | None,
    patience: timedelta | None,
    is_done: Callable[[Standing], bool],
) -> Standing | None:
    """Watch a node until `is_done(node)` or until the node is not registered any more (None). Show the progress.

    `before`: state of the node before the change. Raise ClickException if this takes too long, or if the change is
    undone."""
    import anyio

    seconds = math.inf if patience is None else patience.total_seconds()
    most, begun, told = 0, False, False
    found: Standing | None = None
    with anyio.move_on_after(seconds), Progress() as progress:
        while True:
            seen = await leader.fetch()
            found = _standing(node, seen)
            if found is None or (before is not None and found.store != before.store):
                return None
            if is_done(found):
                return found
            if begun and found.standing == "in":
                raise click.ClickException(f"{node} is in use again: the drain was cancelled")
            begun = begun or found.standing != "in"
            most = max(most, found.replicas)
            progress.tell(_left(node, found, most))
            if not told and _too_many_failed(seen):
                told = True
                say("sandctl: nothing moves while more than a third of the nodes have failed", err=True)
            await anyio.sleep(POLL_S)
    still = _left(node, found, most) if found is not None else "no node answered"
    raise click.ClickException(f"not done within {seconds:g} s; it continues: {still} (see cluster nodes)")


def _left(node: str, found: Standing, most: int) -> str:
    if found.replicas:
        return f"{found.replicas:,} of {counted(most, 'replica')} left on {node}"
    return f"{node} still has a vote in the metadata group" if found.votes else f"{node} holds no replicas"


def _standing(node: str, seen: dict[str, Any]) -> Standing | None:
    for row in seen.get("nodes") or ():
        if row.get("node") == node:
            replicas = int(row.get("replicas") or 0)
            return Standing(str(row.get("standing")), replicas, bool(row.get("voter")), row.get("store_uuid"))
    return None


def _too_many_failed(seen: dict[str, Any]) -> bool:
    rows = seen.get("nodes") or ()
    return 3 * sum(row.get("failed_since_ms") is not None for row in rows) > len(rows)


class _Leader:
    """Return the leader of the metadata group: it has the newest state, while a removed node perhaps never learns of
    its removal."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._node: str | None = None

    async def fetch(self) -> dict[str, Any]:
        seen = await self._ask()
        leader = seen.get("metadata_leader")
        if leader is not None and leader != seen.get("node"):
            self._node = leader
            seen = await self._ask()
        return seen

    async def _ask(self) -> dict[str, Any]:
        import anyio

        from sandq.errors import SandqError

        if self._node is not None:
            with suppress(SandqError), anyio.move_on_after(LEADER_S):
                return await self._client.admin.cluster(self._node)
            self._node = None
        return await self._client.admin.cluster()
