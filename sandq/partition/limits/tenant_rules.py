"""What a topic's settings say of tenants, by patterns: a tenant's name, a prefix with `.*` behind it, or `*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sandq.partition.limits.pacing import Pace


class TenantRule(NamedTuple):
    """What is said of the tenants of a pattern."""

    weight: int = 1
    """So many turns it has for one of a tenant of weight 1."""
    max_in_flight: int | None = None
    """So many of its messages a group has leased at most; None: as many as it likes."""
    pace: Pace | None = None
    """How fast they are given out; None: as fast as it likes."""

    @property
    def is_limit(self) -> bool:
        """Whether it may hold messages up."""
        return self.max_in_flight is not None or self.pace is not None


DEFAULT = TenantRule()


class TenantRules:
    """The rules of a topic. The most exact pattern counts: a name before a prefix, a longer prefix before a shorter."""

    def __init__(self, record: Iterable[Sequence[Any]]) -> None:
        """`record`: patterns with what they say, as the settings have them."""
        self._rules = {
            pattern: TenantRule(weight, most, Pace(*pace) if pace else None) for pattern, weight, most, *pace in record
        }

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self._rules)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TenantRules:
        """The rules in a topic's settings."""
        return cls(settings.get("tenants") or ())

    def find(self, name: str) -> TenantRule:
        """Return what holds for a tenant, or for all whose names begin so."""
        rules = self._rules
        if not rules:
            return DEFAULT
        rule = rules.get(name)
        while rule is None and name:
            name = name.rpartition(".")[0]
            rule = rules.get(f"{name}.*" if name else "*")
        return rule or rules.get("*") or DEFAULT
