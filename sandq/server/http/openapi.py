"""Complete the OpenAPI document that FastAPI generates, so that code generators make good clients from it.

Generators take the document literally:

- `additionalProperties: true` (the default anyway) makes TypeScript accept misspelt members, and Go generate a map and
  two functions for each type.
- An integer without a format has 32 bits in Java, and a number without one has 32 bits in Go.
- A `title` becomes a comment that repeats the name.
- A union without a name becomes a type for each use; in Go, one that cannot be filled.
"""

from __future__ import annotations

from typing import Any

from sandq.server.http.examples import BODIES
from sandq.server.http.problems import MEDIA_TYPE
from sandq.server.http.rights import is_open

_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
SCHEME = "token"
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of this cluster (`sandctl token create`), or one of the issuer in the configuration.",
}
_FORMATS = {"integer": "int64", "number": "double"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COMBINATIONS = ("anyOf", "oneOf", "allOf")
_NULL = {"type": "null"}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Add examples of bodies, error responses and security, and make all schemas fit for generators."""
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        _simplify_schema(schema)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(operation, schemas)
            _secure(operation, is_open(path))
    document["components"]["securitySchemes"] = {SCHEME: _BEARER}
    return document


def _secure(operation: dict[str, Any], is_for_everybody: bool) -> None:
    """Add the security of an operation. The empty alternative is for clusters that do not require authentication."""
    operation["security"] = [] if is_for_everybody else [{SCHEME: []}, {}]
    if not is_for_everybody:
        operation["responses"].setdefault("401", {"description": "The caller is unknown.", "content": _PROBLEM})
        operation["responses"].setdefault("403", {"description": "The caller lacks the right.", "content": _PROBLEM})


def _complete(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Add examples and error responses to an operation, and simplify its schemas."""
    operation_id = operation["operationId"]
    name = operation_id[0].upper() + operation_id[1:]
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
        _simplify_schema(parameter["schema"])
    for status, response in operation["responses"].items():
        if str(status)[0] in "45":
            response["content"] = _PROBLEM
        elif "content" in response:
            _simplify_content(response["content"], f"{name}Answer", schemas)
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        content["application/json"]["schema"] = _without_null(content["application/json"]["schema"])
        _simplify_content(content, f"{name}In", schemas)
        content["application/json"]["example"] = BODIES[operation_id]


def _simplify_content(content: dict[str, Any], name: str, schemas: dict[str, Any]) -> None:
    """Replace a union by a named schema: `name`, or the name of an equal schema."""
    for media in content.values():
        schema = media.get("schema", {})
        _simplify_schema(schema)
        if not schema.keys().isdisjoint(_COMBINATIONS):
            schema_name = next((other for other, known in schemas.items() if known == schema), name)
            schemas.setdefault(schema_name, schema)
            media["schema"] = {"$ref": f"#/components/schemas/{schema_name}"}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of an optional body or parameter: it is present or not, but never null."""
    kinds = schema.get("anyOf", ())
    if _NULL not in kinds:
        return schema
    kinds = [kind for kind in kinds if kind != _NULL]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**kinds[0], **rest} if len(kinds) == 1 else {"anyOf": kinds, **rest}


def _simplify_schema(schema: dict[str, Any]) -> None:
    """Simplify a schema and its inner schemas for generators of clients, in place.

    Remove titles, add formats of 64 bits, write the bounds of integers as integers, and omit
    `additionalProperties: true` (the default). The module's docstring has the reasons."""
    schema.pop("title", None)
    if (kind := schema.get("type")) in _FORMATS:
        schema.setdefault("format", _FORMATS[kind])
    if kind == "integer":
        schema.update({name: int(schema[name]) for name in _BOUNDS if name in schema})
    if "properties" in schema and schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    inner = [*schema.get("properties", {}).values(), *(one for name in _COMBINATIONS for one in schema.get(name, ()))]
    inner += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for one in inner:
        _simplify_schema(one)
