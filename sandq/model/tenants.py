"""Settings of a fair topic for its tenants: a weight, a limit of messages in flight, and a rate, by pattern of names.

    {"acme": {"weight": 3}, "acme.*": {"max_in_flight": 100}, "*": {"rate": "10/s", "burst": 20}}

A pattern is a tenant's name, a prefix followed by `.*` (all tenants below it), or `*` (all tenants). The record of a
topic has a list of [pattern, weight, max_in_flight or nil], sorted by pattern. The row of a pattern with a rate ends
with the microseconds between two messages and the burst.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sandq.model import schema
from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.names import check_tenant
from sandq.model.rates import interval_us

EVERY: Final = "*"
BELOW: Final = ".*"


def check_pattern(text: str) -> str:
    """Return `text` if it is a tenant pattern. Raise InvalidRequest otherwise."""
    if text == EVERY:
        return text
    try:
        check_tenant(text.removesuffix(BELOW))
    except InvalidRequest:
        shown = text if len(text) <= FIXED.tenant_bytes else text[:80] + "..."
        raise InvalidRequest(
            f"{shown!r} is no pattern: the name of a tenant, a prefix followed by {BELOW}, or {EVERY} is expected"
        ) from None
    return text


def _most(value: object) -> int | None:
    """Return a maximum number of messages in flight; None for `none`."""
    return None if value is None or value == "none" else schema.whole(value, 1, 1_000_000)


BURST_OF_S: Final = 10
"""Without a burst, a rate allows a burst of the messages of 1/BURST_OF_S second."""


def _rate(value: object) -> int | None:
    """Return the interval of a rate in µs; None for `none`."""
    try:
        return None if value is None or value == "none" else interval_us(value)
    except ValueError as error:
        raise schema.mistake(str(error)) from None


class TenantSettings(schema.Section):
    """Settings for the tenants of one pattern."""

    weight: Annotated[int, schema.integer(1, 1000)] = 1
    max_in_flight: Annotated[int | None, BeforeValidator(_most)] = None
    rate: Annotated[int | None, BeforeValidator(_rate)] = None
    """The rate; after validation, the time between two messages in microseconds."""
    burst: Annotated[int | None, BeforeValidator(_most)] = None

    def row(self, pattern: str) -> list[Any]:
        """Return the row of a pattern in the record of a topic."""
        row: list[Any] = [pattern, self.weight, self.max_in_flight]
        if self.rate is None:
            if self.burst is not None:
                raise schema.mistake(f"{pattern}: a burst needs a rate")
            return row
        # `self.rate` is the time between two messages, in us: by default a burst has the messages of 1 / BURST_OF_S s.
        return [*row, self.rate, self.burst or max(1_000_000 // BURST_OF_S // self.rate, 1)]


def _mapping(given: Any) -> Any:
    """Check a mapping of patterns, which may also be given as its JSON text."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise schema.mistake(f"a mapping of tenants, or JSON text of one, is expected: {error}") from None
    if not isinstance(given, dict):
        raise schema.mistake("a mapping of tenants is expected")
    if len(given) > FIXED.tenant_patterns:
        raise schema.mistake(f"{len(given)} patterns; {FIXED.tenant_patterns} are allowed")
    for pattern in given:
        try:
            check_pattern(str(pattern))
        except InvalidRequest as error:
            raise schema.mistake(error.message) from None
    return given


class AsRows:
    """An annotation: checks a mapping of patterns, and converts it to the rows of the record."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Build the schema; called by Pydantic."""
        mapping = handler.generate_schema(dict[str, TenantSettings])
        return core_schema.no_info_before_validator_function(
            _mapping, core_schema.no_info_after_validator_function(_rows, mapping)
        )


def _rows(mapping: dict[str, TenantSettings]) -> list[list[Any]]:
    """Return the rules as they are stored, sorted by pattern."""
    return [one.row(pattern) for pattern, one in sorted(mapping.items())]


Tenants = Annotated[list[list[Any]], AsRows()]
"""Rows [pattern, weight, max_in_flight], with the microseconds between messages and the burst if there is a rate.
Lists, not tuples, as msgpack returns them."""
