"""Quotas of an identity: how much of the cluster it may take. PERSISTED as a map of those that are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from sandq.model.errors import InvalidRequest, QuotaExceeded
from sandq.model.times import duration_ms

_MOST: Final = (1 << 53) - 1
"""Every program can carry it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """None: as much as anybody."""

    connections: int | None = None
    """To each node."""
    requests_per_s: int | None = None
    """By each node."""
    bytes_per_s: int | None = None
    """Of requests, by each node."""
    stored_bytes: int | None = None
    """Of the topics that it owns."""
    topics: int | None = None
    """That it owns."""
    partitions: int | None = None
    """Of the topics that it owns."""
    pending_messages: int | None = None
    """Of the topics that it owns, that are not due yet."""
    max_delay_ms: int | None = None
    """How far ahead it may send messages."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Of a record as it is kept; what a later version may have added is passed over."""
        if not record and cls is Quota:
            return NO_QUOTA  # type: ignore[return-value]
        return cls(**{name: record[name] for name in NAMES if name in record})

    def record(self) -> dict[str, int]:
        """Return what is set."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def changed(self, given: Mapping[str, object]) -> Self:
        """Return it with these changed; None takes one away. `max_delay` may be a duration. InvalidRequest names every
        mistake."""
        record: dict[str, Any] = self.record()
        mistakes = []
        for name, value in given.items():
            try:
                name, value = _checked(name, value)
            except InvalidRequest as error:
                mistakes.append(error.message)
                continue
            record.pop(name, None)
            if value is not None:
                record[name] = value
        if mistakes:
            raise InvalidRequest("; ".join(mistakes))
        return self.of(record)

    def check(self, name: str, principal: str, count: int) -> None:
        """Raise QuotaExceeded unless a principal may have so many of what does not go away by itself."""
        most = getattr(self, name)
        if most is not None and count > most:
            refusal = QuotaExceeded(
                f"{principal} would have {count:,} {name.replace('_', ' ')}, and its quota is {most:,} ({name}): have "
                "less, or have the quota raised by somebody with the right 'security'",
                quota=name,
                maximum=most,
                principal=principal,
            )
            refusal.retriable = False  # it does not help to wait
            raise refusal


NO_QUOTA: Final = Quota()
"""That of whoever has none: one object, so that to see it costs a comparison."""
NAMES: Final = tuple(field.name for field in fields(Quota))
"""Of all quotas there are."""


def _checked(name: str, value: Any) -> tuple[str, int | None]:
    if name == "max_delay":
        name, value = "max_delay_ms", None if value is None else duration_ms(value)
    if name not in NAMES:
        raise InvalidRequest(f"{str(name)[:40]}: no such quota; there are {', '.join(NAMES)}")
    if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
        raise InvalidRequest(f"{name}: a whole number from 0 on is expected, or none, not {value!r:.40}")
    return name, value
