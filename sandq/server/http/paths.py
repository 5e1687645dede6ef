"""Keys and names in paths and queries, and versions in conditions: read exactly, or refused.

A key is bytes. In a path it is percent-encoded UTF-8, slashes as they are or encoded; or, with `encoding=base64`,
base64url, padded or not. A version is a strong entity tag. The name of a schedule, the unique key of a message and a
principal are one segment of a path: their slashes are percent-encoded, because further segments may follow.
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
"""Slashes before the key: /topics/{topic}/keys/."""


class _Key(Convertor[str]):
    """The rest of a path, whatever stands in it: a key may have slashes and line feeds."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("key", _Key())


def key_of(request: Request, key: str, encoding: str) -> bytes:
    """The key that a path names, `key` being what the router made of it: there, what is no UTF-8 is something else."""
    *before, sent = request.scope["raw_path"].split(b"/", _SEGMENTS)
    if _BAD_PERCENT.search(sent):
        raise InvalidRequest("key: in a path a % stands before two hexadecimal digits; the character itself is %25")
    try:
        text = unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("key: it is no UTF-8 text; give it in base64url, with encoding=base64") from None
    if text != key or len(before) < _SEGMENTS:
        raise InvalidRequest("the path: only within a key a slash may be percent-encoded")
    return bytes_of("key", text, encoding)


class SegmentRoute(Route):
    """A route whose path holds names with slashes. A percent-encoded slash belongs to the name; it ends no segment."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match segment by segment, as the path was sent. The parameters of a match are decoded."""
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
    return value.replace("%2F", "/").replace("%25", "%") if isinstance(value, str) else value


def check_segments(request: Request) -> None:
    """Raise InvalidRequest for a path that is no percent-encoded UTF-8."""
    sent = request.scope["raw_path"]
    if _BAD_PERCENT.search(sent):
        raise InvalidRequest("the path: a % stands before two hexadecimal digits; the character itself is %25")
    try:
        unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            "the path: percent-encoded UTF-8 is expected; a unique key may be given in base64url, with encoding=base64"
        ) from None


def segment_router(*tags: str | Enum) -> APIRouter:
    """Return a router whose routes have names with slashes in their paths."""
    router = router_of(*tags, route=SegmentRoute)
    router.dependencies.append(Depends(check_segments))
    return router


def bytes_of(name: str, text: str, encoding: str) -> bytes:
    """Of a key, or of the beginning of one."""
    if encoding != "base64":
        return text.encode()
    if not text:
        return b""
    data = base64.urlsafe_b64decode(text.rstrip("=") + "===") if _fits(text) else b""
    if not data or base64.urlsafe_b64encode(data).decode().rstrip("=") != text.rstrip("="):
        raise InvalidRequest(f"{name}: {_shown(text)} is not base64url (A-Z a-z 0-9 - _, padded with = or not)")
    return data


def text_of(name: str, key: bytes, encoding: str) -> str:
    """What `bytes_of` reads."""
    if encoding == "base64":
        return base64.urlsafe_b64encode(key).decode().rstrip("=")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: a key here is no UTF-8 text; ask with encoding=base64") from None


def _fits(text: str) -> bool:
    return _BASE64URL.fullmatch(text) is not None and len(text.rstrip("=")) % 4 != 1


def only(request: Request, name: str) -> str | None:
    """A condition of the request, all its lines joined; None when there is none."""
    lines = request.headers.getlist(name)
    return ", ".join(lines).strip() if lines else None


def refuse(request: Request, name: str, why: str) -> None:
    """A condition that a route has no use for is not passed over."""
    if only(request, name) is not None:
        raise InvalidRequest(f"{name}: {why}")


def version_of(name: str, condition: str) -> str:
    """The version in an If-Match."""
    tag = _TAG.fullmatch(condition)
    if tag is None:
        raise InvalidRequest(
            f"{name}: {_shown(condition)}: one version in quotes is expected, as ETag has it "
            '("01HN..."), no *, list or weak tag'
        )
    try:
        return to_text(from_text(tag[1]))
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.message}") from None


def is_known(condition: str | None, version: str) -> bool:
    """Whether the client has this version already, by its If-None-Match: `*`, or any tags, of which weak ones do."""
    if condition is None:
        return False
    if condition == "*":
        return True
    if not _TAGS.fullmatch(condition):
        raise InvalidRequest(
            f'If-None-Match: {_shown(condition)}: * or versions in quotes are expected, as ETag has them ("01HN...")'
        )
    return version in _TAG.findall(condition)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
