"""The documentation site in a real browser, served by the code of `sandq docs`, without the internet.

The site is built once, with Zensical. If the browser logs an error, a warning or a violation of the policy, the test
fails.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import sandq
from tests.support.browser import Browser, chromium
from tests.support.page_checks import SITE_CONTRAST
from tests.support.paths import ROOT
from tests.support.release import packaging_script

PAGES = ["", "how-to/cancel-a-reminder/", "topics/"]
"""The start page, a how-to page and a reference page."""
SERVE = """
import sys
from pathlib import Path
from sandq.tools.docs import serve
serve(Path(sys.argv[1]), 0, False, lambda line: print(line, flush=True))
"""
FAILED = """
const urls = performance.getEntries().filter((one) => ["navigation", "resource"].includes(one.entryType));
return urls.filter((one) => one.responseStatus >= 400 || !one.name.startsWith(location.origin)).map((one) => one.name);
"""
"""Script that lists the failed requests of a page, and those to other servers."""
FORGET = "try { localStorage.clear() } catch {}"  # about:blank has no storage
"""Script that runs before those of each page: a page stores the color scheme of its first reader. To clear the storage
between two pages is too early: the page before may still write."""
HAS_FOCUS = "return document.activeElement?.shadowRoot?.activeElement?.tagName === 'INPUT'"
"""Script that returns whether the field of the search has the focus."""
RESULTS = """
const roots = [...document.querySelectorAll("*")].map((one) => one.shadowRoot).filter(Boolean);
return roots.flatMap((one) => [...one.querySelectorAll("[role=option]")]).map((one) => one.innerText);
"""
"""Script that returns the results of the search, which are in a shadow tree."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site") / "docs"
    assert packaging_script("site/build").build(directory) == 0
    return directory / "site.zip"


@pytest.fixture(scope="module")
def url(archive: Path) -> Iterator[str]:
    command = [sys.executable, "-c", SERVE, str(archive)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0]
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0, "Ctrl-C is the normal end"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as found:
        found.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FORGET})
        yield found


@pytest.fixture
def browser(chrome: Browser) -> Iterator[Browser]:
    chrome.size(1280, 900)
    yield chrome
    assert chrome.logged() == []


def show(browser: Browser, url: str, page: str, scheme: str = "light") -> None:
    """Open a page as a new reader whose system prefers a color scheme."""
    browser.leave()
    browser.scheme(scheme)
    browser.open(url + page)
    expected = {"light": "default", "dark": "slate"}[scheme]
    browser.until(lambda: browser.run("return document.body.dataset.mdColorScheme") == expected, f"not {scheme}")


@pytest.mark.parametrize("page", PAGES)
def test_all_requests_of_a_page_succeed_and_stay_on_the_server(browser: Browser, url: str, page: str) -> None:
    show(browser, url, page)
    browser.one("article h1")
    assert browser.run(FAILED) == []
    version = sandq.__version__.partition(".dev")[0]
    assert browser.run("return document.title").endswith(f" - sandq {version}")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_phone(browser: Browser, url: str, page: str) -> None:
    browser.size(360, 740)
    show(browser, url, page)
    browser.one("article h1")
    assert browser.run("return document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_text_has_enough_contrast(browser: Browser, url: str, page: str, scheme: str) -> None:
    show(browser, url, page, scheme)
    found: dict[str, Any] = browser.run(SITE_CONTRAST)
    assert found["checked"] > 50 and found["wrong"] == []


def test_search_result_opens_its_page(browser: Browser, url: str) -> None:
    show(browser, url, "")
    browser.click("Search")
    browser.until(lambda: browser.run(HAS_FOCUS), "the search does not open")
    browser.keys("cancel")
    found = browser.until(lambda: browser.run(RESULTS), "the search finds nothing")
    assert "cancel" in found[0].lower()
    browser.keys("\n")
    browser.until(lambda: browser.driver.current_url != url, "the first result does not open")
    browser.one("article mark")
    assert browser.run(FAILED) == []


def test_links_lead_from_the_start_page_to_an_answer(browser: Browser, url: str) -> None:
    show(browser, url, "")
    browser.click("how to", "article")
    browser.until(lambda: browser.driver.current_url == f"{url}how-to/", "the page of all questions does not open")
    browser.click("Move a message to another time", "article")
    browser.reads("Move a message", "article h1")
    assert browser.run(FAILED) == []


def test_a_missing_page_shows_the_navigation(browser: Browser, url: str) -> None:
    show(browser, url, "how-to/no/such/page")
    browser.until(browser.logged, "the status is not 404")
    assert browser.run(FAILED) == [f"{url}how-to/no/such/page"]
    links = browser.run("return [...document.querySelectorAll('nav a')].map((one) => one.href)")
    assert f"{url}how-to/" in links
    browser.one("header a.md-logo").click()
    browser.until(lambda: browser.driver.current_url == url, "the logo does not lead to the start page")


def test_help_links_of_the_console_exist_on_the_site(archive: Path) -> None:
    script = (ROOT / "sandq/server/http/static/console/main.js").read_text(encoding="utf-8")
    links = re.findall(r'^  \[/.*/, "([^"]+)"\],$', script, re.MULTILINE)
    assert len(links) > 10
    with ZipFile(archive) as site:
        for page, _, anchor in (link.partition("#") for link in links):
            assert anchor == "" or f'id="{anchor}"' in site.read(f"{page}index.html").decode(), f"{page}#{anchor}"
            assert f"{page}index.html" in site.namelist()
