"""Tests of the documentation site: pages are read from an archive, and nothing else can be read."""

from __future__ import annotations

import base64
import gzip
import hashlib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from fastapi import Request
from fastapi.responses import Response

from sandq.model.errors import Corruption, NotFound
from sandq.server.http import site
from sandq.server.http.routes_console import POLICY

SCRIPT = "document.documentElement.dataset.ready = 1"
START = f'<script>{SCRIPT}</script><script id="c" type="application/json">{{}}</script><a href="topics/">x</a>'
FILES = {
    "index.html": START,
    "topics/index.html": "<h1>Topics</h1>",
    "404.html": '<a href="/">home</a><script>new URL("/", location)</script>',
    "search.json": '{"items": []}' * 100,
    "assets/main.css": "a { color: blue }",
    "images/one.png": "\x89PNG",
    "llms.txt": "# sandq",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "site.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as packed:
        for name, text in FILES.items():
            packed.writestr(name, text)
    return path


def get(archive: Path, path: str, base: str = "/help/", **headers: str) -> Response:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": "GET", "path": base + path, "query_string": query.encode(), "headers": lines}
    return site.respond(Request(scope), archive, base)


@pytest.mark.parametrize(
    ("path", "name", "media_type"),
    [
        ("", "index.html", "text/html; charset=utf-8"),
        ("index.html", "index.html", "text/html; charset=utf-8"),
        ("topics/", "topics/index.html", "text/html; charset=utf-8"),
        ("search.json", "search.json", "application/json"),
        ("assets/main.css", "assets/main.css", "text/css; charset=utf-8"),
        ("images/one.png", "images/one.png", "image/png"),
        ("llms.txt", "llms.txt", "text/plain; charset=utf-8"),
    ],
)
def test_page_or_file_has_its_content_type(archive: Path, path: str, name: str, media_type: str) -> None:
    answer = get(archive, path)
    assert (answer.status_code, bytes(answer.body)) == (200, FILES[name].encode())
    assert answer.headers["content-type"] == media_type


@pytest.mark.parametrize("base", ["/", "/help/"])
def test_directory_without_a_slash_is_redirected(archive: Path, base: str) -> None:
    for query in ("", "?h=cancel&x=%20"):
        answer = get(archive, f"topics{query}", base)
        assert (answer.status_code, answer.headers["location"]) == (307, f"{base}topics/{query}")


@pytest.mark.parametrize(
    "path",
    [
        *("nope", "nope/", "topics/nope", "topics//", "/", "//", "/index.html", "//index.html", "."),
        *("..", "../", "../index.html", "../../etc/passwd", "topics/../index.html", "%2e%2e/site.zip"),
        *("/etc/passwd", "//example.org", "C:\\windows", "..\\..\\x", "index.html\0", "\0", "\udcff", "\u202e"),
        *("topics/\n", "index.html\n"),
        *("images", "assets/", "x" * 1_000_000, "../" * 100_000, "topics/" * 10_000),
    ],
    ids=lambda path: ascii(path[:20]),
)
def test_other_paths_return_the_page_for_missing_pages(archive: Path, path: str) -> None:
    (archive.parent / "index.html").write_text("outside of the archive")
    answer = get(archive, path)
    assert answer.status_code == 404
    assert bytes(answer.body) == b'<a href="/help/">home</a><script>new URL("/help/", location)</script>'
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_policy_allows_exactly_the_inline_scripts_of_a_page(archive: Path) -> None:
    policy = get(archive, "").headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    without = get(archive, "topics/").headers["content-security-policy"]
    assert without == policy.replace(f" 'sha256-{digest}'", "")
    assert "unsafe" not in POLICY, "the policy of the console is a different one"


def test_file_is_compressed_if_accepted(archive: Path) -> None:
    answer = get(archive, "search.json", accept_encoding="gzip, br")
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(bytes(answer.body)) == FILES["search.json"].encode()
    assert "content-encoding" not in get(archive, "images/one.png", accept_encoding="gzip").headers


def test_compressed_bytes_of_the_archive_are_sent_unchanged(archive: Path) -> None:
    """To compress a large file at each request would take most of the time of the HTTP process."""
    for name in ("search.json", "llms.txt", "topics/index.html"):
        body = bytes(get(archive, name, accept_encoding="gzip").body)
        assert body[10:-8] in archive.read_bytes() and gzip.decompress(body) == FILES[name].encode()


def test_file_that_the_archive_does_not_compress_is_sent_as_it_is(archive: Path) -> None:
    with ZipFile(archive, "w") as stored:
        stored.writestr("llms.txt", "# sandq")
    answer = get(archive, "llms.txt", accept_encoding="gzip")
    assert "content-encoding" not in answer.headers and bytes(answer.body) == b"# sandq"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_known_file_is_not_sent_again(archive: Path, encoding: str) -> None:
    tag = get(archive, "search.json", accept_encoding=encoding).headers["etag"]
    again = get(archive, "search.json", accept_encoding=encoding, if_none_match=tag)
    assert (again.status_code, bytes(again.body), again.headers["etag"]) == (304, b"", tag)
    other = {"gzip": "identity", "identity": "gzip"}[encoding]
    assert get(archive, "search.json", accept_encoding=other, if_none_match=tag).status_code == 200


def test_damaged_archive_gets_an_error_or_the_right_bytes(archive: Path) -> None:
    whole = archive.read_bytes()
    refused = 0
    for at in range(len(whole)):
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            answer = get(archive, "topics/")
        except Corruption as error:
            assert "is damaged" in error.message and "make docs" in error.message
            refused += 1
        else:
            expected = FILES["topics/index.html" if answer.status_code == 200 else "404.html"]
            assert bytes(answer.body) == expected.replace('"/', '"/help/').encode()
    assert refused > 20
    for size in range(0, len(whole), 40):
        archive.write_bytes(whole[:size])
        with pytest.raises(Corruption, match="is damaged"):
            get(archive, "")


def test_removed_archive_gets_an_error(tmp_path: Path) -> None:
    with pytest.raises(Corruption, match=r"site\.zip, is damaged \(FileNotFoundError\)") as raised:
        get(tmp_path / "site.zip", "")
    assert str(tmp_path) not in raised.value.message, "anybody may read the message"


def test_archive_of_a_checkout_comes_before_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, builder = tmp_path / "lib" / "site.zip", tmp_path / "packaging" / "site" / "build.py"
    built = tmp_path / "build" / "docs" / "site.zip"
    for path in (installed, builder, built):
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(site, "_INSTALLED", installed)
    monkeypatch.setattr(site, "_CHECKOUT", tmp_path)
    assert site.archive() == built
    built.unlink()
    assert site.archive() == installed
    installed.unlink()
    with pytest.raises(NotFound, match="run `make docs`"):
        site.archive()
    built.touch()
    builder.unlink()
    with pytest.raises(NotFound, match="the wheel of a release"):
        site.archive()
