"""Provide the console in a browser, and steps that several tests of the console use."""

from __future__ import annotations

import json
import shlex
import urllib.error
import urllib.request
from typing import Any

import click
from selenium.webdriver.common.by import By

from sandctl.main import main
from tests.support.browser import Browser


class Api:
    """The HTTP API of the node whose console is tested."""

    def __init__(self, base: str, token: str | None = None) -> None:
        self.base = base
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """Return the decoded reply. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, self._headers, method=method)
        with urllib.request.urlopen(request) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def status(self, method: str, path: str) -> int:
        """Return the HTTP status of the reply; 0 if the connection fails."""
        try:
            self(method, path)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            return 0
        return 200

    def lease(self, topic: str, group: str, count: int = 1) -> list[dict[str, Any]]:
        """Lease due messages of a topic."""
        messages: list[dict[str, Any]] = []
        while len(messages) < count:
            told = self("POST", f"/topics/{topic}/groups/{group}/lease", {"max": count, "wait": "10s"})
            messages += told["messages"]
        return messages


class Console:
    """The console of one node."""

    def __init__(self, browser: Browser, api: Api) -> None:
        self.browser = browser
        self.api = api
        self.commands: list[str] = []
        """Command lines that dialogs have shown."""

    def go(self, place: str) -> None:
        """Open a view. If the page is loaded already, change only the view."""
        browser, base = self.browser, f"{self.api.base}/"
        if not str(browser.driver.current_url).startswith(base) or not browser.driver.find_elements(By.TAG_NAME, "nav"):
            browser.open(base + place)
        else:
            browser.run("location.hash = arguments[0] || '#/'", place)
        browser.one("main > *")

    def act(self, text: str, verb: str, *, within: str = "main", typed: str | None = None, **fields: str) -> str:
        """Open a dialog with a button, fill it in and confirm it. Return the text of the dialog."""
        browser = self.browser
        browser.click(text, within)
        browser.one("dialog[open]")
        for name, value in fields.items():
            browser.fill(name, value, "dialog")
        if typed is not None:
            assert browser.one("dialog button[type=submit]").get_attribute("disabled"), "done without the name"
            browser.fill("typed", typed, "dialog")
        self.note_command("dialog")
        browser.button(verb, "dialog")  # The button is enabled once the affected objects are counted.
        said = browser.text("dialog")
        browser.click(verb, "dialog")
        browser.until(lambda: not browser.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"), f"{verb}: not done")
        return said

    def note_command(self, within: str) -> str:
        """Check that sandctl accepts the command line that is shown. Return the command line."""
        line = self.browser.text(f"{within} .command")
        check_command(line)
        self.commands.append(line)
        return line

    def is_clean(self) -> None:
        """Fail if the browser logged an error, a warning or a violation of the content security policy."""
        found = self.browser.logged()
        assert not found, "\n".join(found)


def check_command(line: str) -> None:
    """Raise unless sandctl has a command with this name and these arguments."""
    program, *arguments = shlex.split(line)
    assert program == "sandctl"
    command: click.Command = main
    context: click.Context | None = None
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(click.Context(command, context), arguments)
        assert name is not None and found is not None, line
        # Pass its settings: a command keeps the names of the help option of the first context that asks for them.
        context, command = click.Context(command, context, **command.context_settings), found
    command.make_context("sandctl", arguments, context)
