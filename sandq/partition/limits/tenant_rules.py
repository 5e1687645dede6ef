"""Rules for tenants in a topic's settings. A pattern is a tenant's name, a prefix followed by `.*`, or `*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sandq.partition.limits.pacing import Pace


class TenantRule(NamedTuple):
    """The rule for the tenants that match a pattern."""

    weight: int = 1
    """Number of turns that the tenant gets per turn of a tenant with weight 1."""
    max_in_flight: int | None = None
    """Maximum number of the tenant's messages that a group may have leased. None if there is no limit."""
    pace: Pace | None = None
    """Maximum rate at which the tenant's messages are leased. None if there is no limit."""

    @property
    def is_limit(self) -> bool:
        """Return whether the rule may hold up messages of a tenant."""
        return self.max_in_flight is not None or self.pace is not None


DEFAULT = TenantRule()


class TenantRules:
    """The rules of a topic. The most specific pattern applies: a name before any prefix, a longer prefix before a
    shorter one."""

    def __init__(self, record: Iterable[Sequence[Any]]) -> None:
        """`record`: patterns with their rules, as stored in the settings."""
        self._rules = {
            pattern: TenantRule(weight, most, Pace(*pace) if pace else None) for pattern, weight, most, *pace in record
        }

    def __bool__(self) -> bool:
        """Return whether there are any rules."""
        return bool(self._rules)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TenantRules:
        """Return the rules in a topic's settings."""
        return cls(settings.get("tenants") or ())

    def find(self, name: str) -> TenantRule:
        """Return the rule for a tenant, or for all tenants whose names begin with `name`."""
        rules = self._rules
        if not rules:
            return DEFAULT
        rule = rules.get(name)
        while rule is None and name:
            name = name.rpartition(".")[0]
            rule = rules.get(f"{name}.*" if name else "*")
        return rule or rules.get("*") or DEFAULT
