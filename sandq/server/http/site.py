"""The documentation site: an archive of static pages, which `sandq docs` and each node serve.

`make docs` makes the archive, and a release has it in the wheel. The files are read from the archive at each request.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from importlib.resources import files
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from sandq.model.errors import Corruption, NotFound
from sandq.server.http.paths import is_known, only
from sandq.server.http.routes_console import HEADERS, TYPES, accepts_gzip

_INSTALLED: Final = Path(str(files(__package__))) / "static" / "site.zip"
"""The archive in the wheel of a release."""
_CHECKOUT: Final = Path(__file__).resolve().parents[3]
"""The root of the repository, unless sandq is installed from a wheel."""
_BUILDER: Final = Path("packaging", "site", "build.py")
_BUILT: Final = Path("build", "docs", "site.zip")
"""The archive that `make docs` makes in a checkout."""
_PAGE: Final = "index.html"
_NOT_FOUND: Final = "404.html"
_TYPES: Final = {**TYPES, "json": "application/json", "png": "image/png"}
_LOCAL_HEADER: Final = struct.Struct("<26xHH")
"""The header before a file in the archive: the lengths of the name and of the extra field, which follow it."""
_GZIP_HEADER: Final = b"\x1f\x8b\x08" + bytes(5) + b"\x02\xff"
_GZIP_END: Final = struct.Struct("<LL")
"""Checksum and size of a file, after its compressed bytes."""
_INLINE: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def archive() -> Path:
    """Return the path of the archive. In a checkout, `make docs` makes it. Raise NotFound if there is none."""
    is_checkout = (_CHECKOUT / _BUILDER).is_file()
    for path in (_CHECKOUT / _BUILT, _INSTALLED) if is_checkout else (_INSTALLED,):
        if path.is_file():
            return path
    if is_checkout:
        raise NotFound("the documentation site is not built: run `make docs`")
    raise NotFound("this installation has no documentation site: install sandq from the wheel of a release")


def respond(request: Request, site: Path, base: str) -> Response:
    """Return the response to a GET of a page or a file. Raise Corruption if the archive is damaged.

    `base`: path at which the site is served, which begins the path of the request. The rest must be the name of a file
    in the archive, or of a directory with a page, so no other file can be read."""
    # The path of the route would not do: it lacks a line end at the end of the request's path.
    path = request.scope["path"].removeprefix(base)
    name = path + _PAGE if path == "" or path.endswith("/") else path
    try:
        with ZipFile(site) as pages:
            is_directory = name not in pages.NameToInfo and f"{path}/{_PAGE}" in pages.NameToInfo
            info = pages.NameToInfo.get(name)
            data = pages.read(info or _NOT_FOUND)
            packed = _packed(pages, info) if info is not None and accepts_gzip(request) else None
    except Exception as error:  # a damaged archive makes zipfile raise errors of many kinds
        # Anybody may read the error, so it has no path of this machine.
        raise Corruption(
            f"the archive of the documentation, {site.name}, is damaged ({type(error).__name__}): install sandq again, "
            "or run `make docs` in a checkout"
        ) from error
    if is_directory:
        return RedirectResponse(f"{base}{path}/" + f"?{request.url.query}" * bool(request.url.query))
    if info is None:
        # The generator writes the links of this page for a site at the root of a server.
        data = data.replace(b'"/', b'"' + base.encode())
        return Response(data, 404, _headers(_NOT_FOUND, data))
    return _respond(request, info, data, packed)


def _packed(pages: ZipFile, info: ZipInfo) -> bytes | None:
    """Return a file in the format of gzip, with the compressed bytes of the archive: compressing the largest file would
    take 85 ms. None if the file is not compressed in the archive, or is an image."""
    if info.compress_type != ZIP_DEFLATED or info.filename.endswith(".png"):
        return None
    file = pages.fp
    assert file is not None
    file.seek(info.header_offset)
    file.seek(sum(_LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))), 1)
    return _GZIP_HEADER + file.read(info.compress_size) + _GZIP_END.pack(info.CRC, info.file_size)


def _respond(request: Request, info: ZipInfo, data: bytes, packed: bytes | None) -> Response:
    """Respond with a file, `packed` if that is given; without the file if the client has it already."""
    tag = f"{info.CRC:08x}-{info.file_size:x}{'-gzip' * (packed is not None)}"
    headers = _headers(info.filename, data) | {"etag": f'"{tag}"'}
    if is_known(only(request, "If-None-Match"), tag):
        return Response(status_code=304, headers=headers)
    if packed is None:
        return Response(data, headers=headers)
    return Response(packed, headers={**headers, "content-encoding": "gzip"})


def _headers(name: str, data: bytes) -> dict[str, str]:
    """Return the headers of a file. Their policy allows only the inline scripts that a page has."""
    media_type = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    scripts = _INLINE.findall(data) if name.endswith(".html") else []
    hashes = sorted({base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts})
    policy = "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'self'", *(f"'sha256-{one}'" for one in hashes))),
            "style-src 'self' 'unsafe-inline'",  # the alignment of table columns, and the styles of the search
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return {**HEADERS, "content-type": media_type, "content-security-policy": policy}
