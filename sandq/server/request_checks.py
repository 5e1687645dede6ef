"""Check the requests of a connection against request rates, quotas, and the storage limits of topic owners."""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from sandq.broker.broker import Broker
from sandq.model.batch_format import stored_bytes_of
from sandq.model.quotas import NO_QUOTA, Quota
from sandq.protocol.frames import Frame, Type
from sandq.protocol.requests import Produce
from sandq.server.connection import Connection
from sandq.server.delays import DELAYING, Ahead, ahead_of_batch, check_delay, delay_of_request
from sandq.server.entrance import Entrance
from sandq.server.gateway_proof import GatewayProof
from sandq.server.info import ServerInfo
from sandq.server.quota_meters import NEVER_REFUSED, NOT_COUNTED


class RequestChecks:
    """Checks of one connection. Gateways check the rates and quotas of their callers themselves."""

    def __init__(
        self, broker: Broker, connection: Connection, info: ServerInfo, entrance: Entrance, proof: GatewayProof
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._info = info
        self._entrance = entrance
        self._proof = proof

    @property
    def quota(self) -> Quota:
        """The quota of the identity that this connection belongs to."""
        login = self._connection.login
        return NO_QUOTA if login is None else login.quota

    def check_rate(self, topic: object, requests: int = 1) -> None:
        """Raise Throttled if the client exceeds the request rate of a topic."""
        opened = self._broker.catalog.topics.get(topic) if type(topic) is str else None
        access = self._entrance.access
        if opened is not None and access is not None and not access.sees(opened.record.name):
            return  # the request is refused later: it must neither use up the rate nor reveal the topic
        if opened is not None and not self._proof.is_given:
            caller = self._connection.caller
            self._info.request_rates.take(opened.record.name, opened.record.settings, caller, requests)

    def count(self, frame: Frame) -> None:
        """Count a request, except PRODUCE, against the quota of the caller. Raise QuotaExceeded."""
        kind, quota, now_ms = frame[0], self.quota, self._broker.clock.now_ms()
        if quota is NO_QUOTA or kind in NOT_COUNTED:
            return
        principal = self._connection.caller.principal
        if kind in DELAYING and quota.max_delay_ms is not None:
            check_delay(principal, quota, delay_of_request(frame, now_ms))
        size = 0 if quota.bytes_per_s is None else _size_of(frame)
        is_free, carries = kind in NEVER_REFUSED, kind == Type.ACK_THEN
        self._info.quotas.take(principal, quota, 1, size, is_free=is_free, carries=carries)

    def check_delay_of_caller(self, frame: Frame) -> None:
        """Check how far ahead a gateway schedules messages for its caller. Raise QuotaExceeded."""
        principal = self._connection.caller.principal
        record = self._broker.metadata.identities.get(principal)
        if record is not None and "max_delay_ms" in record.quota:
            quota = Quota.of(record.quota)
            check_delay(principal, quota, delay_of_request(frame, self._broker.clock.now_ms()))

    def check_stored(self, topic: str, size: int | None, pending: Callable[[], int | None]) -> None:
        """Raise QuotaExceeded if the request would exceed the limits of the topic's owner: see `OwnerUsage.check`."""
        usage = self._info.usage
        if usage is not None and usage.bounds_any and (owner := self._owner(topic)) is not None:
            usage.check(owner, size, pending)

    def admits(self, requests: int) -> bool:
        """Return whether the quota of the caller admits this number of requests now."""
        quota = self.quota
        return quota is NO_QUOTA or self._info.quotas.admits(self._connection.caller.principal, quota, requests)

    def needs_delay(self, topic: str) -> bool:
        """Return whether any check of a batch for this topic depends on its delivery times."""
        return self.quota.max_delay_ms is not None or self._owner(topic) is not None

    def count_produce(self, request: Produce, requests: int, known: Ahead | None = None) -> None:
        """Count the batch of `requests` PRODUCE requests.

        Raise QuotaExceeded if the quota of the caller, or of the topic's owner, is used up. `known`: how far ahead the
        batch sends messages; None: compute it if a check needs it."""
        quota, raw, usage = self.quota, request.batch, self._info.usage
        if quota is NO_QUOTA and (usage is None or not usage.bounds_any):
            return

        def ahead() -> Ahead:
            """Return how far ahead the batch sends messages."""
            return ahead_of_batch(raw, self._broker.clock.now_ms()) if known is None else known

        self.check_stored(request.topic, stored_bytes_of(raw), lambda: ahead().messages)
        if quota is NO_QUOTA:
            return
        principal = self._connection.caller.principal
        if quota.max_delay_ms is not None:
            check_delay(principal, quota, ahead().delay_ms)
        self._info.quotas.take(principal, quota, requests, stored_bytes_of(raw))

    def _owner(self, topic: str) -> str | None:
        """Return the owner of a topic, if the topic is open here and has one."""
        opened = self._broker.catalog.topics.get(topic)
        return None if opened is None else opened.record.owner


def _size_of(frame: Frame) -> int:
    """Return the size of a request in bytes: that of its frame, encoded again."""
    try:
        return len(msgpack.packb(frame))
    except ValueError:
        return 0  # nested too deeply to be valid: the parser of the request rejects it
