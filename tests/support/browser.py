"""Drive a headless Chromium from Debian's packages with Selenium."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import PATIENCE_S

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--no-default-browser-check", "--force-prefers-reduced-motion"),
)
PAUSE_S = 0.03
Find = tuple[str, str]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with a profile of its own. Skips the test if Chromium is not installed."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, found in programs.items() if found is None]
    if missing:
        pytest.skip(f"`{'`, `'.join(missing)}` is not installed: tests/install-system-packages does it")
    with tempfile.TemporaryDirectory(prefix="sandq-chromium-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = str(programs["chromium"])
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options, Service(str(programs["chromedriver"])))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """Operates a page as a person would: opens it, reads it, clicks, types."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self.size(1280, 900)

    def open(self, url: str) -> None:
        """Load a page. If the page is open already, load it again."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def leave(self) -> None:
        """Close the page and discard its log messages. Tests call this when the node of the page has ended."""
        self.driver.get("about:blank")
        self.logged()

    def size(self, width: int, height: int) -> None:
        """Set the inner size of the window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """Prefer the color scheme "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a script."""
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Return the value that a script passes to its last argument, a callback."""
        return self.driver.execute_async_script(script, *arguments)

    def until(self, condition: Callable[[], Any], expected: str) -> Any:
        """Wait until `condition` returns a true value, and return it. `expected`: text for the failure."""
        end = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"{expected}; the page has:\n{self.text()}\n{self.logged()}")
            time.sleep(PAUSE_S)
        return found

    def text(self, selector: str = "body") -> str:
        """Return the text of all visible elements that match the selector."""
        script = """
        const shown = [...document.querySelectorAll(arguments[0])].filter((one) => one.getClientRects().length);
        return shown.map((one) => one.innerText).join("\\n");
        """
        return str(self.run(script, selector))

    def reads(self, text: str, selector: str = "body") -> None:
        """Wait until this text is visible."""
        self.until(lambda: text in self.text(selector), f"{text!r} is not visible in {selector}")

    def one(self, selector: str) -> WebElement:
        """Wait for a visible element and return it."""
        script = """
        const all = [...document.querySelectorAll(arguments[0])];
        return all.find((one) => one.getClientRects().length) ?? null;
        """
        found: WebElement = self.until(lambda: self.run(script, selector), f"no {selector} is shown")
        return found

    def button(self, text: str, within: str = "body") -> None:
        """Wait for a visible and enabled button or link with this text."""
        self.until(lambda: self._at_button(text, within, False), f"no button {text!r} in {within}")

    def click(self, text: str, within: str = "body") -> None:
        """Click on a button or a link with this text."""
        self.until(lambda: self._at_button(text, within, True), f"no button {text!r} in {within}")

    def _at_button(self, text: str, within: str, does_click: bool) -> bool:
        script = """
        const [text, within, click] = arguments;
        const all = [...document.querySelectorAll(`${within} button, ${within} a, ${within} summary`)];
        const one = all.find((one) => one.textContent.trim() === text && one.offsetParent !== null && !one.disabled);
        if (one && click) {
          one.scrollIntoView({ block: "center" });
          one.click();
        }
        return Boolean(one);
        """
        return bool(self.run(script, text, within, does_click))

    def fill(self, name: str, value: str, within: str = "body") -> None:
        """Set the value of a field and send the page the events of an input."""
        script = """
        const [name, value] = arguments;
        const field = [...document.querySelectorAll(name)].find((one) => one.getClientRects().length);
        if (field.type === "checkbox") field.checked = value === "true"; else field.value = value;
        field.dispatchEvent(new Event("input", {bubbles: true}));
        field.dispatchEvent(new Event("change", {bubbles: true}));
        """
        self.one(f"{within} [name={name}]")
        self.run(script, f"{within} [name={name}]", value)

    def keys(self, *pressed: str) -> None:
        """Send keys to the element that has the focus."""
        self.driver.switch_to.active_element.send_keys(*pressed)

    def focused(self) -> str:
        """Return the text or the name of the element that has the focus."""
        script = "const e = document.activeElement; return e.name || e.innerText || e.id || e.tagName"
        return str(self.run(script))

    def tab_to(self, text: str) -> None:
        """Press Tab until the element with this text has the focus."""
        for _ in range(120):
            if self.focused().strip() == text:
                return
            self.keys(Keys.TAB)
        raise AssertionError(f"Tab does not reach {text!r}")

    def logged(self) -> list[str]:
        """Return the errors, warnings and violations that the browser logged since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save a PNG of the window, or of the whole page."""
        if whole:
            height = int(self.run("return document.documentElement.scrollHeight"))
            width = int(self.run("return innerWidth"))
            self.size(width, min(height, 2400))
        self.driver.save_screenshot(str(path))
