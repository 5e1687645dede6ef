"""What a fair topic says of its tenants: for patterns of names, a weight and how much may be in flight.

    {"acme": {"weight": 3}, "acme.*": {"max_in_flight": 100}, "*": {"weight": 1, "max_in_flight": "none"}}

A pattern is a tenant's name, a prefix followed by `.*` (what is below it), or `*` (all). The record of a topic has it
as a list of [pattern, weight, max_in_flight or nil], sorted by pattern.
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

EVERY: Final = "*"
BELOW: Final = ".*"


def check_pattern(text: str) -> str:
    """Return a tenant pattern; raises InvalidRequest when it is none."""
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
    return None if value is None or value == "none" else schema.whole(value, 1, 1_000_000)


class TenantSettings(schema.Section):
    """What tenants of one pattern have."""

    weight: Annotated[int, schema.integer(1, 1000)] = 1
    max_in_flight: Annotated[int | None, BeforeValidator(_most)] = None


def _mapping(given: Any) -> Any:
    """A mapping of patterns, given as such or as JSON text of one."""
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
    """An annotation: a mapping of patterns is checked, and kept as the rows that the record has."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Pydantic asks for it."""
        mapping = handler.generate_schema(dict[str, TenantSettings])
        return core_schema.no_info_before_validator_function(
            _mapping, core_schema.no_info_after_validator_function(_rows, mapping)
        )


def _rows(mapping: dict[str, TenantSettings]) -> list[list[Any]]:
    return [[pattern, one.weight, one.max_in_flight] for pattern, one in sorted(mapping.items())]


Tenants = Annotated[list[list[Any]], AsRows()]
"""[pattern, weight, max_in_flight] of each pattern, as msgpack gives them back."""
