"""Send administration requests to the right nodes, and read their replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sandq.client.options import parse_server
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import ask_topic, call, fresh_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import (
    InvalidRequest,
    NotFound,
    ProtocolError,
    SandqError,
    UnknownGroup,
    UnknownPartition,
)
from sandq.model.names import check_name
from sandq.model.pauses import REFUSED
from sandq.protocol.fields import PARTITION_MAX
from sandq.protocol.frames import Frame
from sandq.protocol.request import TopicRequest


async def check_partitions(cluster: Cluster, topic: str, partitions: Iterable[int]) -> None:
    """Raise UnknownTopic or UnknownPartition if one of the partitions does not exist."""
    count = len((await fresh_topic(cluster, check_name("topic", topic))).partitions)
    for partition in partitions:
        if type(partition) is not int or not 0 <= partition < count:
            raise UnknownPartition(f"topic {topic!r} has no partition {partition!r}; it has {count}", topic=topic)


async def ask_leaders(cluster: Cluster, request: TopicRequest) -> list[Frame]:
    """Return the replies of all nodes that lead a partition; each replies for its own partitions."""
    return [await call(cluster, request, node_id=node_id) for node_id in await _leaders(cluster, request.topic)]


async def _leaders(cluster: Cluster, topic: str) -> list[str | None]:
    """Return the leaders of a topic's partitions; [None] (any node) if there is no leader at all."""
    record = await ask_topic(cluster, check_name("topic", topic))
    return [*sorted({row.leader for row in record.partitions if row.leader is not None})] or [None]


async def rows_of_leaders(cluster: Cluster, request: TopicRequest) -> list[dict[str, Any]]:
    rows = [row for frame in await ask_leaders(cluster, request) for row in rows_of(frame, dict)]
    return [shown(row) for row in rows]


async def ask_leaders_of_group(
    cluster: Cluster,
    request: TopicRequest,
    *,
    idempotent: bool = True,
    refusals: list[InvalidRequest] | None = None,
) -> list[Frame]:
    """Like `ask_leaders`, for a group that some nodes may not know. Raises an error only if all nodes do not know
    it.

    `refusals`: a list for the errors of pauses that some partitions refused. The other leaders are asked
    nevertheless."""
    frames: list[Frame] = []
    unknown: SandqError | None = None
    for node_id in await _leaders(cluster, request.topic):
        try:
            frames.append(await call(cluster, request, node_id=node_id, idempotent=idempotent))
        except UnknownGroup as error:
            unknown = error
        except InvalidRequest as error:
            if refusals is None or REFUSED not in error.details:
                raise
            refusals.append(error)
    if unknown is not None and not frames and not refusals:
        raise unknown
    return frames


def address_of(node: str, rows: object) -> tuple[str, int]:
    """Return a node's address for clients, from the rows of CLUSTER_INFO."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("node") == node and isinstance(row.get("client"), str):
            return parse_server(row["client"])
    raise NotFound(f"no node {node!r} is registered that serves clients", node=node)


def check_partition(number: object) -> int:
    if type(number) is not int or not 0 <= number <= PARTITION_MAX:
        raise InvalidRequest(f"partition: a whole number within 0..{PARTITION_MAX} is expected, not {number!r}")
    return number


def check_count(name: str, count: object) -> None:
    if type(count) is not int or not 1 <= count < 2**32:
        raise InvalidRequest(f"{name}: a whole number from 1 on is expected, not {count!r}")


def field_of(frame: Frame) -> Any:
    if len(frame) < 3:
        raise ProtocolError("a reply without its field")
    return frame[2]


def count_of(frame: Frame) -> int:
    found = field_of(frame)
    if type(found) is not int:
        raise ProtocolError(f"expected a count, got {str(found)[:100]}")
    return found


def rows_of(frame: Frame, kind: type) -> list[Any]:
    found = field_of(frame)
    if type(found) is not list or not all(type(row) is kind for row in found):
        raise ProtocolError(f"expected an array of rows, got {str(found)[:100]}")
    return found


def map_of(frame: Frame) -> dict[str, Any]:
    found = field_of(frame)
    if type(found) is not dict:
        raise ProtocolError(f"expected a map, got {str(found)[:100]}")
    return found


def shown(value: Any) -> Any:
    """Return a value in which offsets are text, also in nested rows."""
    if type(value) is list:
        return [shown(one) for one in value]
    if type(value) is dict:
        return {name: shown(one) for name, one in value.items()}
    return offset_model.to_text(value) if type(value) is bytes and len(value) == offset_model.OFFSET_BYTES else value
