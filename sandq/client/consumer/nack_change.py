"""What messages that are nacked have otherwise from then on, for the group that gave them back."""

from __future__ import annotations

from typing import Any, NamedTuple

from sandq.client.producer.partitioner import check_rank
from sandq.client.producer.validation import Headers, MessageValidation, rank_of
from sandq.client.transport.cluster import Cluster


class NackChange(NamedTuple):
    """Another priority, other headers, or both."""

    priority: int | None
    """None: as before."""
    headers: bytes | None
    """Packed; None: as before, empty: none."""

    @classmethod
    def of(cls, cluster: Cluster, topic: str, priority: int | None, headers: Headers | None) -> NackChange | None:
        """Return the change that a caller asks for, checked; None: nothing is to change. Of any thread.

        Raises InvalidRequest: what the broker refuses it refuses with the whole frame.
        """
        if priority is None and headers is None:
            return None
        if priority is not None:
            rank_of(priority, None)
            record = cluster.record(topic)
            if record is not None:
                check_rank(topic, record.kind, priority, None)
        packed = None if headers is None else MessageValidation(cluster.limits).headers(headers) or b""
        return cls(priority, packed)

    def to_map(self) -> dict[str, int | bytes]:
        """As an item of a NACK has it."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def nack_item(
    token: int, what: list[list[Any]] | None, delay_ms: int | None, error: str | None, change: NackChange | None
) -> list[Any]:
    """An item of a NACK: what was begun, and did not end well."""
    item: list[Any] = [token, what, delay_ms, error]
    return item if change is None else [*item, True, change.to_map()]
