"""Quotas of an identity: how much of the cluster it may use. PERSISTED as a map of the quotas that are set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from sandq.model.errors import InvalidRequest, QuotaExceeded
from sandq.model.times import duration_ms

_MOST: Final = (1 << 53) - 1
"""Greatest value of a quota: every language represents integers up to this one exactly."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of an identity. None: not limited."""

    connections: int | None = None
    """Maximum number of connections to each node."""
    requests_per_s: int | None = None
    """Maximum number of requests per second to each node."""
    bytes_per_s: int | None = None
    """Maximum bytes of requests per second to each node."""
    stored_bytes: int | None = None
    """Maximum bytes stored in the topics that the identity owns."""
    topics: int | None = None
    """Maximum number of topics that the identity owns."""
    partitions: int | None = None
    """Maximum number of partitions of the topics that the identity owns."""
    pending_messages: int | None = None
    """Maximum number of messages that are not due yet, in the topics that the identity owns."""
    max_delay_ms: int | None = None
    """Maximum delay of the messages that the identity sends, in ms."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the quotas of a stored record. Unknown names, which a later version may have added, are ignored."""
        if not record and cls is Quota:
            return NO_QUOTA  # type: ignore[return-value]
        return cls(**{name: record[name] for name in NAMES if name in record})

    def record(self) -> dict[str, int]:
        """Return the quotas that are set."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def changed(self, given: Mapping[str, object]) -> Self:
        """Return the quotas with these changes; None removes one. `max_delay` may be a duration. Raise InvalidRequest,
        which names every mistake."""
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
        """Raise QuotaExceeded if `count`, the number that a principal would have, exceeds its quota `name`. The error
        is not retriable, because waiting does not help."""
        most = getattr(self, name)
        if most is not None and count > most:
            refusal = QuotaExceeded(
                f"{principal} would have {count:,} {name.replace('_', ' ')}, and its quota is {most:,} ({name}): have "
                "less, or ask a caller with the right 'security' to raise the quota",
                quota=name,
                maximum=most,
                principal=principal,
            )
            refusal.retriable = False  # waiting does not help
            raise refusal


NO_QUOTA: Final = Quota()
"""Quotas without any limit. This is the only such object, so that it can be compared with `is`."""
NAMES: Final = tuple(field.name for field in fields(Quota))
"""Names of all quotas."""


def _checked(name: str, value: Any) -> tuple[str, int | None]:
    """Return the name and the value of a quota. Raise InvalidRequest. `max_delay` becomes `max_delay_ms`."""
    if name == "max_delay":
        name, value = "max_delay_ms", None if value is None else duration_ms(value)
    if name not in NAMES:
        raise InvalidRequest(f"{str(name)[:40]}: no such quota; there are {', '.join(NAMES)}")
    if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
        raise InvalidRequest(f"{name}: a whole number from 0 on is expected, or none, not {value!r:.40}")
    return name, value
