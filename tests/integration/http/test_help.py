"""The documentation site at /help/ of a node: public, read-only, and without a site a clear 404."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
import trio

from sandq.model.errors import NotFound
from sandq.node.running import Serving
from sandq.server.http import site
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S

PAGE = b"<h1>Topics</h1>"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site.zip"
    with ZipFile(path, "w") as packed:
        packed.writestr("topics/index.html", PAGE)
        packed.writestr("404.html", '<a href="/">home</a>')
    monkeypatch.setattr(site, "archive", lambda: path)
    return path


async def exchange(node: Serving, target: str, header: str = "Accept: */*") -> bytes:
    """Send a GET of a path as it is, without the changes that clients make to paths, and return the response."""
    assert node.http is not None
    stream = await trio.open_tcp_stream(*node.http)
    async with stream:
        await stream.send_all(
            f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{header}\r\n\r\n".encode()
        )
        answer = b""
        with trio.fail_after(PATIENCE_S):
            while piece := await stream.receive_some(65536):
                answer += piece
    return answer


async def test_page_is_served_with_a_policy_of_its_own(web: Web, archive: Path) -> None:
    page = await web.raw("GET", "/help/topics/?h=cancel")
    assert (page.status_code, page.content) == (200, PAGE)
    assert page.headers["x-content-type-options"] == "nosniff"
    console = await web.raw("GET", "/", headers={"accept": "text/html"})
    assert "unsafe" in page.headers["content-security-policy"]
    assert "unsafe" not in console.headers["content-security-policy"]
    head = await web.raw("HEAD", "/help/topics/")
    assert (head.status_code, head.content) == (200, b"")
    assert (await web.raw("GET", "/help")).headers["location"] == "/help/"
    assert (await web.raw("GET", "/help/topics?h=a")).headers["location"] == "/help/topics/?h=a"
    assert (await web.raw("POST", "/help/topics/")).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        *("../metrics", "..", "%2e%2e/%2e%2e/etc/passwd", "%2e%2e%2fsite.zip", "/etc/passwd", "%2fetc%2fpasswd"),
        *("topics/..", "nope", "%00", "topics/%0a", "%ff", "%", "x" * 12_000),
    ],
    ids=lambda path: path[:20],
)
async def test_other_paths_are_not_found(web_node: Serving, archive: Path, path: str) -> None:
    answer = await exchange(web_node, f"/help/{path}")
    assert answer.startswith(b"HTTP/1.1 404 ") and answer.endswith(b'<a href="/help/">home</a>')


async def test_missing_site_is_a_clear_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise NotFound("the documentation site is not built: run `make docs`")

    monkeypatch.setattr(site, "archive", missing)
    found = await web.ask("GET", "/help/", None, 404)
    assert (found["code"], found["detail"]) == (
        "NOT_FOUND",
        "the documentation site is not built: run `make docs`",
    )


async def test_damaged_site_is_a_clear_error(web: Web, archive: Path) -> None:
    await trio.Path(archive).write_bytes(b"PK no archive")
    found = await web.ask("GET", "/help/topics/", None, 500)
    assert found["code"] == "CORRUPTION" and "is damaged" in found["detail"]


async def test_site_is_open_to_anonymous_callers(tmp_path: Path, archive: Path) -> None:
    config = small_config(tmp_path / "strict", LISTEN__HTTP="127.0.0.1:0", SECURITY__AUTHENTICATION="require")
    async with run_node(config) as node:
        assert b" 200 " in (await exchange(node, "/help/topics/")).splitlines()[0]
        assert b" 401 " in (await exchange(node, "/helpless")).splitlines()[0]
        assert b" 401 " in (await exchange(node, "/help/topics/", "Content-Length: 9")).splitlines()[0]
