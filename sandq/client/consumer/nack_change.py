"""The terms of a nack, and its changes of the messages, which apply only to the group that nacks them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sandq.client.producer.partitioner import check_rank
from sandq.client.producer.validation import Headers, MessageValidation, delay_of, rank_of
from sandq.client.transport.cluster import Cluster
from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.model.times import Duration, duration_ms


class NackChange(NamedTuple):
    """A new priority, new headers, or both."""

    priority: int | None
    """None for no change."""
    headers: bytes | None
    """Packed headers; None for no change, empty to remove them."""

    @classmethod
    def of(cls, cluster: Cluster, topic: str, priority: int | None, headers: Headers | None) -> NackChange | None:
        """Check and return the change that a caller requests; None for no change. May be called from any thread.

        Raises InvalidRequest for an invalid change, because the broker would refuse the whole frame.
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
        """Return the changed fields, in the form of an item of a NACK request."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class NackTerms(NamedTuple):
    """The terms of a nack: when its messages are retried, with which error and change."""

    delay_ms: int | None = None
    """None for the topic's back-off."""
    error: str | None = None
    begun: bool = True
    """False if the messages were not begun. Neither the attempt nor a snooze counts then, and no back-off applies."""
    change: NackChange | None = None
    end: int = RETRY
    """How the attempt ends: see `model.nack_ends`."""

    @property
    def feature(self) -> int:
        """The feature level that a broker needs for these terms. An older broker refuses the whole request."""
        return 2 if self.end != RETRY else 1 if self.change is not None else 0

    def item(self, token: int, ranges: list[list[Any]] | None) -> list[Any]:
        """Return the item of a NACK."""
        item: list[Any] = [token, ranges, self.delay_ms, self.error]
        change = None if self.change is None else self.change.to_map()
        if self.end != RETRY:
            return [*item, True, change, self.end]
        if change is not None:
            return [*item, True, change]
        return item if self.begun else [*item, False]

    def end_fields(self) -> tuple[int, int | None, str | None]:
        """Return the last fields of an ACK_THEN. Raises InvalidRequest if there are changes."""
        if self.change is not None:
            raise InvalidRequest("if_dead: a nack that sends messages cannot change the priority or the headers")
        return self.end, self.delay_ms, self.error


NOT_BEGUN: Final = NackTerms(begun=False)
"""Terms for messages that were not begun."""


def retry_terms(
    delay: Duration | None,
    delay_ms: int | None,
    error: str | BaseException | None,
    count: bool,
    change: NackChange | None = None,
) -> NackTerms:
    """Return the terms of a nack whose messages are retried. Raises InvalidRequest, InvalidTime."""
    if delay_ms is not None:
        delay = delay_of(delay, delay_ms)
    if type(count) is not bool:
        raise InvalidRequest(f"count: True or False is expected, not {count!r}")
    end = RETRY if count else SNOOZE
    return NackTerms(None if delay is None else duration_ms(delay), _text_of(error), change=change, end=end)


def not_begun_terms(delay: Duration | None, error: str | BaseException | None) -> NackTerms:
    """Return the terms for messages that were not begun, and are ready after `delay`. Raises InvalidRequest,
    InvalidTime."""
    return NackTerms(None if delay is None else duration_ms(delay), _text_of(error), begun=False)


def dead_terms(error: str | BaseException | None) -> NackTerms:
    """Return the terms of a nack that makes its messages dead."""
    return NackTerms(error=_text_of(error), end=DEAD)


def error_text(error: str | BaseException) -> str:
    """Return the error text of a nack. Characters that UTF-8 cannot encode, as in some file names, are escaped."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text[: FIXED.error_chars].encode(errors="backslashreplace").decode()[: FIXED.error_chars]


def _text_of(error: str | BaseException | None) -> str | None:
    return None if error is None else error_text(error)
