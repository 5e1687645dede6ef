"""The console: web pages that use the API like any other client.

The console consists of static files, which are the same for all users. Its scripts fetch all data from the API, with
the user's token.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from sandq.client.json_format import settings_json
from sandq.model.setting_texts import SETTINGS, UNITS
from sandq.model.settings import CLASSES, parse_settings
from sandq.server.http.paths import is_known, only
from sandq.server.http.problems import problem
from sandq.server.http.strict import router_of

router = router_of()
PAGE: Final = "index.html"
SETTING_TEXTS: Final = "setting_texts.js"
"""A module that is generated from `sandq.model.setting_texts`. All other files are static."""
_GZIP: Final = re.compile(r"(^|,)\s*gzip\s*(,|$)")
"""Accept-Encoding that accepts gzip without a lower quality, as browsers send it."""
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Only scripts and styles of this server run, and text never becomes markup: message values may be hostile."""
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    # Browsers revalidate files each time (304): a new version of sandq has new files under the same names.
    "cache-control": "no-cache",
    "vary": "Accept, Accept-Encoding",
}


class Asset(NamedTuple):
    """A file of the console. `tag`: entity tag of its content. `packed`: the content compressed with gzip."""

    data: bytes
    media_type: str
    tag: str
    packed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return all files of the console, by name."""
    found = {}
    for file in files(__package__).joinpath("static", "console").iterdir():
        _, _, suffix = file.name.rpartition(".")
        if suffix in TYPES:
            found[file.name] = _asset_of(file.read_bytes(), suffix)
    found[SETTING_TEXTS] = _asset_of(_setting_texts().encode(), "js")
    return found


def _asset_of(data: bytes, suffix: str) -> Asset:
    """Return a file of the console, ready to be served: compressed, and with its tag."""
    return Asset(data, TYPES[suffix], hashlib.sha256(data).hexdigest()[:32], gzip.compress(data, mtime=0))


def _setting_texts() -> str:
    """Return a module with the help, unit and default of each setting, as in `sandctl topic create --help`."""
    defaults: dict[str, Any] = {}
    for kind in CLASSES:
        shown = settings_json(parse_settings({}, kind).record(), kind)
        defaults |= {**shown, **{f"backoff.{part}": value for part, value in shown["backoff"].items()}}
    texts = {
        name: {
            "says": text.says,
            "unit": UNITS.get(text.unit, ""),
            "kind": text.unit,
            "allows_none": text.allows_none,
            "choices": text.choices,
            "is_fixed": text.is_fixed,
            "default": defaults[name],
        }
        for name, text in SETTINGS.items()
    }
    return f"export default {json.dumps(texts)};\n"


@router.get("/", include_in_schema=False)
async def root(request: Request) -> Response:
    """Return the console if the client accepts HTML, and otherwise redirect to the description of the API."""
    if "text/html" not in request.headers.get("accept", ""):
        return RedirectResponse("/docs", headers={"vary": "Accept"})
    return _respond(request, assets()[PAGE])


@router.get("/console/{asset}", include_in_schema=False)
async def asset(request: Request, asset: str) -> Response:
    found = assets().get(asset)
    if found is None or asset == PAGE:
        return problem(request.state.request_id, 404, "NO_ROUTE", "the console has no such file")
    return _respond(request, found)


def accepts_gzip(request: Request) -> bool:
    """Return whether the client accepts a response that is compressed with gzip."""
    return _GZIP.search(request.headers.get("accept-encoding", "")) is not None


def _respond(request: Request, found: Asset) -> Response:
    """Respond with a file, compressed if the client accepts that; without the file if the client has it already."""
    is_packed = accepts_gzip(request)
    tag = f"{found.tag}-gzip" if is_packed else found.tag
    headers = {**HEADERS, "etag": f'"{tag}"'}
    if is_known(only(request, "If-None-Match"), tag):
        return Response(status_code=304, headers=headers)
    if not is_packed:
        return Response(found.data, media_type=found.media_type, headers=headers)
    return Response(found.packed, media_type=found.media_type, headers={**headers, "content-encoding": "gzip"})
