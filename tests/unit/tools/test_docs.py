"""Tests of `sandq docs`: its errors, and its server on a free port."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from zipfile import ZipFile

import pytest
import uvicorn
from click.testing import CliRunner

from sandq.cli import main
from sandq.server.http import site
from sandq.tools import docs
from tests.support.paths import ROOT

SERVE = """
import sys
from pathlib import Path
from sandq.tools.docs import serve
serve(Path(sys.argv[1]), 0, False, lambda line: print(line, flush=True))
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site.zip"
    with ZipFile(path, "w") as packed:
        packed.writestr("index.html", "<h1>sandq</h1>")
        packed.writestr("404.html", "missing")
    monkeypatch.setattr(site, "archive", lambda: path)
    return path


def test_missing_site_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_INSTALLED", tmp_path / "site.zip")
    monkeypatch.setattr(site, "_CHECKOUT", tmp_path)
    result = CliRunner().invoke(main, ["docs"])
    assert result.exit_code == 1
    assert result.stderr == (
        "sandq: this installation has no documentation site: install sandq from the wheel of a release\n"
    )


def test_used_port_is_an_error(archive: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(main, ["docs", "--port", str(port)])
    assert result.exit_code == 1
    assert f"--port {port} cannot be used: Address already in use; choose a different port" in result.stderr


def test_browser_opens_the_printed_url(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        assert [listener.getsockname()[0] for listener in sockets] == ["127.0.0.1"]
        assert (server.config.limit_concurrency, server.config.timeout_graceful_shutdown) == (64, 1)

    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(uvicorn.Server, "run", run)
    lines: list[str] = []
    docs.serve(archive, 0, False, lines.append)
    assert opened == []
    docs.serve(archive, 0, True, lines.append)
    assert opened == [lines[1].split()[0]] and opened[0].startswith("http://127.0.0.1:")


def test_only_reads_are_served(archive: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(archive)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        try:
            assert status("GET", url) == (200, b"<h1>sandq</h1>")
            assert status("HEAD", url) == (200, b"")
            assert status("POST", url)[0] == 405
            assert status("GET", f"{url}nope") == (404, b"missing")
            for path in ("../", "%2e%2e/", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "index.html%0a", "x" * 5000):
                assert status("GET", url + path) == (404, b"missing"), path
            archive.write_bytes(b"no archive")
            code, text = status("GET", url)
            assert code == 500 and b"is damaged (BadZipFile): install sandq again" in text
        finally:
            process.terminate()


def status(method: str, url: str) -> tuple[int, bytes]:
    """Return the status and the body of a response."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            assert answer.headers["x-content-type-options"] == "nosniff"
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
