"""Messages that an ack sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sandq.client.arguments import suggesting
from sandq.client.producer.validation import AT, DELAY, TIME_BITS, Headers, MessageValidation, Push, Value
from sandq.client.transport.cluster import Cluster
from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.json_values import MISSING
from sandq.model.limits import FIXED
from sandq.model.names import check_name
from sandq.model.retries import Backoff, MaxAttempts
from sandq.model.times import Duration, Instant


@suggesting
@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that an ack or a nack sends (`message.ack(then=[...])`), with the options of `produce`.

    `topic`: None for the topic of the settled message. It has no unique key: the ack takes effect only once, so the
    message is not duplicated.
    """

    value: Value | None = MISSING
    topic: str | None = None
    json: Any = field(default=MISSING, kw_only=True)
    key: Value | None = field(default=None, kw_only=True)
    headers: Headers | None = field(default=None, kw_only=True)
    deliver_at: Instant | None = field(default=None, kw_only=True)
    delay: Duration | None = field(default=None, kw_only=True)
    ttl: Duration | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    tenant: str | None = field(default=None, kw_only=True)
    max_attempts: MaxAttempts | None = field(default=None, kw_only=True)
    backoff: Backoff | None = field(default=None, kw_only=True)
    cost: int | None = field(default=None, kw_only=True)
    push: Push | None = field(default=None, kw_only=True)

    def row(self, checks: MessageValidation) -> list[Any]:
        """Check the message, and return it in the form of ACK_THEN. Raises InvalidRequest, InvalidTime, TooLarge."""
        if self.topic is not None:
            check_name("topic", self.topic)
        value, key, headers, traits, at_ms, _, ttl_ms, _, rank, rules = checks.message(
            self.value,
            self.json,
            key=self.key,
            headers=self.headers,
            deliver_at=self.deliver_at,
            delay=self.delay,
            ttl=self.ttl,
            priority=self.priority,
            tenant=self.tenant,
            max_attempts=self.max_attempts,
            backoff=self.backoff,
            cost=self.cost,
            push=self.push,
        )
        priority, tenant = rank or (None, None)
        named: dict[str, Any] = {"value": value, "key": key, "headers": headers, "ttl_ms": ttl_ms}
        named |= {"priority": priority, "tenant": None if tenant is None else tenant.decode()}
        if rules is not None:
            named |= rules._asdict()
        time = traits & TIME_BITS
        is_timed, is_delay = time in (AT, DELAY), time == DELAY
        return [
            self.topic,
            at_ms if is_timed else None,
            is_delay,
            {name: value for name, value in named.items() if value is not None},
        ]


def rows_of(cluster: Cluster, then: Sequence[Outgoing]) -> list[list[Any]]:
    """Check messages, and return them in the form of ACK_THEN. May be called from any thread.

    Raises InvalidRequest with the position of a wrong message.
    """
    if isinstance(then, Outgoing) or not isinstance(then, Sequence):
        raise InvalidRequest("then: a list of sandq.Outgoing is expected")
    if not 1 <= len(then) <= FIXED.then_messages:
        raise InvalidRequest(f"then: {len(then)} messages; 1 to {FIXED.then_messages} go with an ack")
    checks, found, size = MessageValidation(cluster.limits), [], 0
    for number, message in enumerate(then):
        if not isinstance(message, Outgoing):
            raise InvalidRequest(f"then: message {number} is {type(message).__name__}, and no sandq.Outgoing")
        try:
            found.append(message.row(checks))
        except InvalidRequest as error:
            raise error.again(f"then: message {number}: {error.message}") from None
        size += sum([len(cell) for cell in found[-1][3].values() if isinstance(cell, bytes)])
    if size > FIXED.then_bytes:
        raise TooLarge(
            f"then: {size} bytes; {FIXED.then_bytes} go with an ack", limit="then_bytes", maximum=FIXED.then_bytes
        )
    return found
