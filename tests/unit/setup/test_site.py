"""Tests of the program that adapts the pages for the documentation site (packaging/site/build.py)."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

import sandq
import sandq.testing
from tests.support.paths import ROOT


def _build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", ROOT / "packaging" / "site" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = _build()
TOPICS, DEPLOY, CHANGELOG = ROOT / "docs" / "topics.md", ROOT / "docs" / "how-to" / "deploy.md", ROOT / "CHANGELOG.md"
GATEWAY = ROOT / "docs" / "examples" / "webhook-gateway" / "README.md"


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        (TOPICS, "[a](client.md#x)", "[a](client.md#x)"),
        (TOPICS, "[a](#x), [b](https://example.org/x)", "[a](#x), [b](https://example.org/x)"),
        (TOPICS, "[the log](../CHANGELOG.md)", "[the log](changelog.md)"),
        (DEPLOY, "[the log](../../CHANGELOG.md#x)", "[the log](../changelog.md#x)"),
        (DEPLOY, "[its values](../../deploy/helm/sandq/values.yaml)", "its values (`deploy/helm/sandq/values.yaml`)"),
        (DEPLOY, "[deploy/](../../deploy)", "`deploy`"),
        (TOPICS, "[a worker](examples/worker.py)", "[a worker](examples/worker.md)"),
        (TOPICS, "[examples](examples)", "[examples](examples/index.md)"),
        (
            DEPLOY,
            "[a project](../examples/webhook-gateway/README.md#x)",
            "[a project](../examples/webhook-gateway/index.md#x)",
        ),
        (DEPLOY, "[Go](../examples/go/main.go)", "[Go](../examples/go/index.md#maingo)"),
        (GATEWAY, "[the sender](gateway/sender.py)", "[the sender](index.md#gatewaysenderpy)"),
        (GATEWAY, "[limits](../../how-to/limit-calls-to-an-api.md)", "[limits](../../how-to/limit-calls-to-an-api.md)"),
        (CHANGELOG, "[client](docs/client.md#x)", "[client](client.md#x)"),
        (CHANGELOG, "![a picture](docs/images/console-topics.png)", "![a picture](images/console-topics.png)"),
        (CHANGELOG, "[LICENSE](LICENSE)", "`LICENSE`"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_name_a_file(source: object, text: str, expected: str) -> None:
    assert site.adapted(text, source) == expected


def test_names_of_code_blocks_are_removed() -> None:
    text = "a\n\n```python run\nx  # [a](b)\n```\n\n- one\n\n  ```hex why\n  00\n  ```\n"
    assert site.adapted(text, TOPICS) == ("a\n\n```python\nx  # [a](b)\n```\n\n- one\n\n  ```text\n  00\n  ```\n")


def test_summary_is_the_first_sentence_of_the_prose() -> None:
    text = "# Title\n\n    indented code\n\n```sh\nls\n```\n\nA [page](x.md) about\nv1.2 of it. More.\n"
    assert site.summary_of(text) == ("Title", "A page about v1.2 of it.")


def test_navigation_has_every_page_once() -> None:
    nav = tomllib.loads(site.CONFIG.read_text(encoding="utf-8"))["project"]["nav"]
    shown = [path for _, paths in site.sections(nav) for path in paths]
    pages = [path.relative_to(site.DOCS).as_posix() for path in site.DOCS.rglob("*.md")]
    expected = [path for path in pages if not path.startswith(("adr/", "examples/"))] + [
        *site.ADDED,
        *(f"api/{name}.md" for name in site.API),
        *site.examples(),
    ]
    assert sorted(shown) == sorted(expected)


def test_names_in_the_navigation_are_the_titles_of_the_pages(tmp_path: Path) -> None:
    def named(content: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
        for entry in content:
            for name, inner in entry.items():
                if isinstance(inner, str):
                    yield inner, name
                else:
                    yield from named(inner)

    titles = {page.path: page.title for page in site.copy_pages(tmp_path)}
    names = dict(named(tomllib.loads(site.CONFIG.read_text(encoding="utf-8"))["project"]["nav"]))
    assert {path: name for path, name in names.items() if name != titles[path]} == {}


def test_page_of_an_example_has_its_files() -> None:
    pages = site.examples()
    gateway = pages["examples/webhook-gateway/index.md"]
    assert gateway.startswith("# Webhook gateway\n")
    assert "\n### gateway/sender.py\n\n````python\n" in gateway
    assert (GATEWAY.parent / "gateway" / "sender.py").read_text(encoding="utf-8") in gateway.replace("\n````", "\n")
    assert pages["examples/worker.md"].startswith(
        "# A worker with a registry of tasks\n\nThis is `docs/examples/worker.py`"
    )
    assert "\n## Files\n" in gateway and "\n## Files\n" not in pages["examples/worker.md"]
    assert "### package-lock.json" not in "".join(pages.values())


def test_files_that_are_not_committed_are_not_published() -> None:
    """A user of an example may have left a secret."""
    secret = GATEWAY.parent / "secret.json"
    secret.write_text('{"secret":"whsec_of-a-test"}')
    try:
        assert not any("whsec_of-a-test" in page for page in site.examples().values())
    finally:
        secret.unlink()


def test_no_link_has_the_name_of_a_file_as_its_text() -> None:
    """A reader of the site sees pages, not files."""
    pages = [path for path in site.DOCS.rglob("*.md") if "adr" not in path.parts]
    assert [
        f"{path.relative_to(ROOT)}: {link}"
        for path in pages
        for link in re.findall(r"\[`?[\w/.-]+\.md`?\]\([^()\s]+\)", path.read_text(encoding="utf-8"))
    ] == []


def test_index_lists_pages_by_section_with_their_summaries() -> None:
    pages = [
        site.Page("index.md", "A", "About a."),
        site.Page("b/index.md", "B", "About b."),
        site.Page("b/c.md", "C", "About c."),
    ]
    nav = [{"First": "index.md"}, {"Second": [{"All": "b/index.md"}, {"See": "b/c.md"}]}]
    config = {"site_name": "s", "site_description": "d", "nav": nav}
    assert site.index_of(pages, config) == (
        "# s\n\n> d.\n\n## First\n\n- [A](./): About a.\n\n## Second\n\n- [B](b/): About b.\n- [C](b/c/): About c.\n"
    )


def test_reference_describes_every_public_name_once() -> None:
    named = [name for page in site.API.values() for name in page["names"]]
    public = {f"sandq.{name}" for name in sandq.__all__} - {"sandq.sync"}
    testing = {f"sandq.testing.{name}" for name in sandq.testing.__all__} - {
        "sandq.testing.START", "sandq.testing.Starting"
    }  # fmt: skip
    assert sorted(named) == sorted([*public, *testing, "sandq.client.admin.admin.Admin"])


def test_title_has_the_version_without_its_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "sandq").mkdir()
    for version in ("1.2.3", "1.2.3.dev4"):
        (tmp_path / "sandq" / "__init__.py").write_text(f'"""Text."""\n\n__version__ = "{version}"\n')
        assert site.title() == "sandq 1.2.3"


def test_archive_of_the_same_files_has_the_same_bytes(tmp_path: Path) -> None:
    archives = []
    for number, names in enumerate((("b/index.html", "a.css", "index.html"), ("index.html", "a.css", "b/index.html"))):
        directory = tmp_path / str(number)
        for name in names:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"content of {name}")
            os.utime(path, (number * 1_000_000_000,) * 2)
        site.pack(directory, directory.with_suffix(".zip"))
        archives.append(directory.with_suffix(".zip"))
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with ZipFile(archives[0]) as packed:
        assert packed.namelist() == ["a.css", "b/index.html", "index.html"]
        assert packed.read("a.css") == b"content of a.css"


def test_missing_generator_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SystemExit, match="zensical is not installed: run `make docs`"):
        site.build(tmp_path / "docs")
