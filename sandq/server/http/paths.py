"""Parse keys and names in paths and queries, and versions in conditions. Text that is not exactly as expected is
refused.

A key is bytes. In a path it is percent-encoded UTF-8, where slashes may be encoded or not; with `encoding=base64`, it
is base64url, with or without padding. A version is a strong entity tag. The name of a schedule, the unique key of a
message and a principal are one segment of a path: their slashes must be encoded, because further segments may follow.
"""

from __future__ import annotations

import base64
import re
from enum import Enum
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from fastapi import APIRouter, Depends, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope

from sandq.model.errors import InvalidRequest
from sandq.model.offsets import from_text, to_text
from sandq.server.http.strict import Route, router_of

_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_ENTITY_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAG = re.compile(r'"([\x21\x23-\x7e\x80-\xff]*)"')
_TAGS = re.compile(rf"{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*")
_SHOWN_CHARS = 80
_SEGMENTS = 4
"""Number of slashes before the key in /topics/{topic}/keys/."""


class _Key(Convertor[str]):
    """The rest of a path. A key may contain any characters, including slashes and line feeds."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        """Return the text unchanged."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text unchanged."""
        return value


register_url_convertor("key", _Key())


def key_of(request: Request, key: str, encoding: str) -> bytes:
    """Return the key that a path names. `key`: as decoded by the router, which garbles bytes that are not UTF-8."""
    *before, sent = request.scope["raw_path"].split(b"/", _SEGMENTS)
    if _BAD_PERCENT.search(sent):
        raise InvalidRequest("key: in a path, % must be followed by two hexadecimal digits; encode % itself as %25")
    try:
        text = unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("key: it is not UTF-8; send it in base64url, with encoding=base64") from None
    if text != key or len(before) < _SEGMENTS:
        raise InvalidRequest("the path: slashes may be percent-encoded only within a key")
    return bytes_of("key", text, encoding)


class SegmentRoute(Route):
    """A route with names that may contain slashes. An encoded slash belongs to the name; it does not end a segment."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path segment by segment, as it was sent. The resulting parameters are decoded."""
        if scope["type"] != "http" or b"%" not in scope["raw_path"]:
            return super().matches(scope)
        segments = scope["raw_path"].decode("latin-1").split("/")
        kept = [unquote(segment).replace("%", "%25").replace("/", "%2F") for segment in segments]
        match, child = super().matches({**scope, "path": "/".join(kept)})
        if match is not Match.NONE:
            names = child["path_params"]
            child["path_params"] = {name: _decoded(value) for name, value in names.items()}
        return match, child


def _decoded(value: Any) -> Any:
    """Return a parameter without the encoding that `matches` added."""
    return value.replace("%2F", "/").replace("%25", "%") if isinstance(value, str) else value


def check_segments(request: Request) -> None:
    """Raise InvalidRequest for a path that is not percent-encoded UTF-8."""
    sent = request.scope["raw_path"]
    if _BAD_PERCENT.search(sent):
        raise InvalidRequest("the path: % must be followed by two hexadecimal digits; encode % itself as %25")
    try:
        unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            "the path: it must be percent-encoded UTF-8; a unique key can be sent in base64url, with encoding=base64"
        ) from None


def segment_router(*tags: str | Enum) -> APIRouter:
    """Return a router for routes with names that may contain slashes."""
    router = router_of(*tags, route=SegmentRoute)
    router.dependencies.append(Depends(check_segments))
    return router


def bytes_of(name: str, text: str, encoding: str) -> bytes:
    """Return the bytes of a key, or of a prefix of keys."""
    if encoding != "base64":
        return text.encode()
    if not text:
        return b""
    data = base64.urlsafe_b64decode(text.rstrip("=") + "===") if _is_base64url(text) else b""
    if not data or base64.urlsafe_b64encode(data).decode().rstrip("=") != text.rstrip("="):
        raise InvalidRequest(f"{name}: {_shown(text)} is not base64url (A-Z a-z 0-9 - _, with or without = padding)")
    return data


def text_of(name: str, key: bytes, encoding: str) -> str:
    """Return a key as text that `bytes_of` reads."""
    if encoding == "base64":
        return base64.urlsafe_b64encode(key).decode().rstrip("=")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: a key is not UTF-8; send the request with encoding=base64") from None


def _is_base64url(text: str) -> bool:
    """Return whether a text consists of base64url characters and has a possible length."""
    return _BASE64URL.fullmatch(text) is not None and len(text.rstrip("=")) % 4 != 1


def only(request: Request, name: str) -> str | None:
    """Return the value of a header that is a condition, its lines joined; None if there is none."""
    lines = request.headers.getlist(name)
    return ", ".join(lines).strip() if lines else None


def refuse(request: Request, name: str, why: str) -> None:
    """Raise InvalidRequest if a request has a condition that its route does not support."""
    if only(request, name) is not None:
        raise InvalidRequest(f"{name}: {why}")


def version_of(name: str, condition: str) -> str:
    """Return the version in an If-Match."""
    tag = _TAG.fullmatch(condition)
    if tag is None:
        raise InvalidRequest(
            f"{name}: {_shown(condition)}: expected one version in quotes, as in ETag "
            '("01HN..."), not *, a list or a weak tag'
        )
    try:
        return to_text(from_text(tag[1]))
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.message}") from None


def is_known(condition: str | None, version: str) -> bool:
    """Return whether the client has this version already, by its If-None-Match: `*` or tags; weak tags count."""
    if condition is None:
        return False
    if condition == "*":
        return True
    if not _TAGS.fullmatch(condition):
        raise InvalidRequest(
            f'If-None-Match: {_shown(condition)}: expected * or versions in quotes, as in ETag ("01HN...")'
        )
    return version in _TAG.findall(condition)


def _shown(text: str) -> str:
    """Return a text in quotes for an error message, cut to `_SHOWN_CHARS`."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
