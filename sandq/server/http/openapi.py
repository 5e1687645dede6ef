"""What `/openapi.json` says beside what FastAPI makes of routes and models: so that generated clients read well.

Generators take a document at its word. `additionalProperties: true`, which is the default anyway, lets TypeScript take
a misspelt member for an unknown one, and has Go generate a map and two functions for each type; a whole number without
a format is one of 32 bits in Java, and a fraction one of 32 bits in Go; a `title` becomes a comment that repeats the
name; a choice of types that has no name gets one type for each place, in Go one that cannot be filled.
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
    "description": "A token of sandq's (`sandctl token create`), or one of the issuer in the configuration.",
}
_FORMATS = {"integer": "int64", "number": "double"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OF_SCHEMAS = ("anyOf", "oneOf", "allOf")
_NULL = {"type": "null"}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Have bodies show an example, errors be problems of that media type, and all schemas be fit for generators."""
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        _tidy(schema)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(operation, schemas)
            _secure(operation, is_open(path))
    document["components"]["securitySchemes"] = {SCHEME: _BEARER}
    return document


def _secure(operation: dict[str, Any], is_for_everybody: bool) -> None:
    """Say what an operation takes to know who asks: nothing at all is taken, too, where nobody has to say it."""
    operation["security"] = [] if is_for_everybody else [{SCHEME: []}, {}]
    if not is_for_everybody:
        operation["responses"].setdefault("401", {"description": "Nobody knows who asks.", "content": _PROBLEM})
        operation["responses"].setdefault("403", {"description": "Who asks has no right to it.", "content": _PROBLEM})


def _complete(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    operation_id = operation["operationId"]
    name = operation_id[0].upper() + operation_id[1:]
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _given(parameter["schema"])
        _tidy(parameter["schema"])
    for status, response in operation["responses"].items():
        if str(status)[0] in "45":
            response["content"] = _PROBLEM
        elif "content" in response:
            _tidy_content(response["content"], f"{name}Answer", schemas)
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        content["application/json"]["schema"] = _given(content["application/json"]["schema"])
        _tidy_content(content, f"{name}In", schemas)
        content["application/json"]["example"] = BODIES[operation_id]


def _tidy_content(content: dict[str, Any], name: str, schemas: dict[str, Any]) -> None:
    """Have a choice of types in there be one of the named schemas: `name`, unless the same one has another name."""
    for told in content.values():
        schema = told.get("schema", {})
        _tidy(schema)
        if not schema.keys().isdisjoint(_OF_SCHEMAS):
            called = next((other for other, known in schemas.items() if known == schema), name)
            schemas.setdefault(called, schema)
            told["schema"] = {"$ref": f"#/components/schemas/{called}"}


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Of what may be left out, a body or a parameter: it is there or not, but never null."""
    kinds = schema.get("anyOf", ())
    if _NULL not in kinds:
        return schema
    kinds = [kind for kind in kinds if kind != _NULL]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**kinds[0], **rest} if len(kinds) == 1 else {"anyOf": kinds, **rest}


def _tidy(schema: dict[str, Any]) -> None:
    schema.pop("title", None)
    if (kind := schema.get("type")) in _FORMATS:
        schema.setdefault("format", _FORMATS[kind])
    if kind == "integer":
        schema.update({name: int(schema[name]) for name in _BOUNDS if name in schema})
    if "properties" in schema and schema.get("additionalProperties") is True:
        del schema["additionalProperties"]
    inner = [*schema.get("properties", {}).values(), *(one for name in _OF_SCHEMAS for one in schema.get(name, ()))]
    inner += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for one in inner:
        _tidy(one)
