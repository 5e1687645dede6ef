"""How messages are nacked, and what they have otherwise from then on, for the group that gave them back."""

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


class NackTerms(NamedTuple):
    """What a nack says of its messages."""

    delay_ms: int | None = None
    """None: the topic's back-off."""
    error: str | None = None
    begun: bool = True
    """Otherwise they are ready at once, and the attempt is not counted."""
    change: NackChange | None = None
    end: int = RETRY
    """How the attempt ends: see `model.nack_ends`."""

    @property
    def feature(self) -> int:
        """What a broker must know to take it: it refuses all of a request in which there is one that it does not."""
        return 2 if self.end != RETRY else 1 if self.change is not None else 0

    def item(self, token: int, what: list[list[Any]] | None) -> list[Any]:
        """Return the item of a NACK."""
        item: list[Any] = [token, what, self.delay_ms, self.error]
        change = None if self.change is None else self.change.to_map()
        if self.end != RETRY:
            return [*item, True, change, self.end]
        if change is not None:
            return [*item, True, change]
        return item if self.begun else [*item, False]


NOT_BEGUN: Final = NackTerms(begun=False)
"""Nothing was done with them."""


def retry_terms(
    delay: Duration | None,
    delay_ms: int | None,
    error: str | BaseException | None,
    count: bool,
    change: NackChange | None = None,
) -> NackTerms:
    """Return the terms of a nack after which messages come again. Raises InvalidRequest, InvalidTime."""
    if delay_ms is not None:
        delay = delay_of(delay, delay_ms)
    if type(count) is not bool:
        raise InvalidRequest(f"count: True or False is expected, not {count!r}")
    end = RETRY if count else SNOOZE
    return NackTerms(None if delay is None else duration_ms(delay), _text_of(error), change=change, end=end)


def dead_terms(error: str | BaseException | None) -> NackTerms:
    """Return the terms of a nack after which messages are dead."""
    return NackTerms(error=_text_of(error), end=DEAD)


def error_text(error: str | BaseException) -> str:
    """The error of a nack; what UTF-8 cannot say (file names have such text) is escaped."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text[: FIXED.error_chars].encode(errors="backslashreplace").decode()[: FIXED.error_chars]


def _text_of(error: str | BaseException | None) -> str | None:
    return None if error is None else error_text(error)
