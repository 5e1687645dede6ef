"""Build the documentation site into build/docs/site, and its archive build/docs/site.zip: `make docs`.

The pages in docs/ are written for a repository: code blocks have names for tests, and some links lead to other files
of the repository. This program copies the pages, adapts both, adds pages with the files of the examples, and runs
Zensical, for which broken links and anchors are errors. It also writes `llms.txt`, an index of all pages for language
models. `sandq docs` and nodes serve the archive.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
BUILD: Final = ROOT / "build" / "docs"
CONFIG: Final = Path(__file__).with_name("zensical.toml")
STYLES: Final = Path(__file__).with_name("colours.css")
ADDED: Final = {"changelog.md": ROOT / "CHANGELOG.md"}
"""Pages of the site that are not in docs/, by their path on the site."""
API: Final = tomllib.loads(Path(__file__).with_name("api.toml").read_text(encoding="utf-8"))
"""The reference of the Python client: title, summary and described names of each page in `api/`."""
EXAMPLES: Final = {
    "go": "A client in Go, generated from the API's description",
    "jdbc": "Queries from Java with JDBC",
    "plain_script.py": "A script with the blocking client",
    "push_receiver.py": "A receiver of pushed messages",
    "typescript": "A client in TypeScript, generated from the API's description",
    "worker.py": "A worker with a registry of tasks",
}
"""Title of the page of each example in docs/examples that has no README."""
_CODE: Final = {
    "Containerfile": "text", ".go": "go", ".html": "html", ".java": "java", ".json": "json", ".mod": "text",
    ".py": "python", ".toml": "toml", ".ts": "typescript", ".yaml": "yaml",
}  # fmt: skip
"""Language of the files of examples that are shown, by the suffix or the name."""
_HIDDEN: Final = {"package-lock.json", "__init__.py"}
"""Files of examples that are not shown below the README."""
UNUSED: Final = ("assets/stylesheets/classic", "sitemap.xml")
"""Parts of the site that no page uses: the styles of a different theme, and an empty list for search engines."""
_ARCHIVE_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the archive, so that the same site gives the same bytes."""
_FENCE: Final = re.compile(r"^(?P<marks>\s*```+)(?P<language>[\w-]*)[^`\n]*$", re.MULTILINE)
_LINK: Final = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_LANGUAGES: Final = {"hex": "text", "peer-hex": "text", "snapshot-hex": "text", "output": "text"}
"""Languages of code blocks that a highlighter does not know, and their replacements."""


_NOT_FOUND: Final = "---\nsearch:\n  exclude: true\n---\n\n"
"""Start of a page that the search does not find: decisions would hide the pages for users."""


class Page(NamedTuple):
    """A page of the site."""

    path: str
    """Path below the site's pages, such as `how-to/deploy.md`."""
    title: str
    summary: str
    """First sentence of the page."""


def adapted(text: str, source: Path) -> str:
    """Return the text of a page for the site.

    `source`: path of the page in the repository. Code blocks lose the names that tests use. A link to a file of an
    example leads to the page of the example. A link to any other file that is not a page of the site becomes the path
    of that file."""
    parts = re.split(r"(^\s*```.*?^\s*```\s*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(_block(part) if number % 2 else _prose(part, source) for number, part in enumerate(parts))


def _block(text: str) -> str:
    """Return a code block whose first line has only a language."""

    def shown(match: re.Match[str]) -> str:
        language = match["language"]
        return match["marks"] + _LANGUAGES.get(language, language)

    return _FENCE.sub(shown, text, count=1)


def _prose(text: str, source: Path) -> str:
    """Return text outside of code blocks with the links of the site."""
    pages = {path.resolve(): name for name, path in ADDED.items()}

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        file = (source.parent / target).resolve()
        if file.is_relative_to(DOCS / "examples"):
            page, anchor = _example_page(file, anchor)
        elif file in pages:
            page = pages[file]
        elif file.is_relative_to(DOCS) and file.suffix in (".md", ".png"):
            page = str(file.relative_to(DOCS))
        else:
            return _as_path(match["text"], file)
        start = source.parent if source.is_relative_to(DOCS) else DOCS
        return f"[{match['text']}]({os.path.relpath(DOCS / page, start)}{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(link, text)


def _example_page(file: Path, anchor: str) -> tuple[str, str]:
    """Return the page of a file or directory in docs/examples, and the anchor in this page.

    `anchor`: the anchor of the link, which only a README has."""
    name, *inner = file.relative_to(DOCS / "examples").parts or ("",)
    if name in ("", "README.md"):
        return "examples/index.md", anchor
    if not inner and file.suffix:
        return f"examples/{file.stem}.md", ""
    return f"examples/{name}/index.md", _anchor("/".join(inner)) if inner and inner != ["README.md"] else anchor


def _anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _is_shown(file: Path) -> bool:
    """Return whether a file of an example is shown."""
    return file.is_file() and file.name not in _HIDDEN and (file.suffix or file.name) in _CODE


def examples() -> dict[str, str]:
    """Return the text of the page of each example, by the path of the page on the site."""
    start = DOCS / "examples" / "README.md"
    pages = {"examples/index.md": adapted(start.read_text(encoding="utf-8"), start)}
    command = ["git", "ls-files", "-z", "docs/examples"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    # Only committed files: users of the examples leave others, such as secrets.
    tracked = [ROOT / name for name in listed.stdout.split("\0") if name and _is_shown(ROOT / name)]
    for path in sorted({DOCS / "examples" / file.relative_to(DOCS / "examples").parts[0] for file in tracked}):
        readme = path / "README.md"
        files = [file for file in tracked if file == path or path in file.parents]
        text = adapted(readme.read_text(encoding="utf-8"), readme) if readme.is_file() else f"# {EXAMPLES[path.name]}\n"
        where = f"`docs/examples/{path.name}` of the source code"
        parts = [text, f"This is {where}.\n" if path.is_file() else f"All files are in {where}.\n"]
        if readme.is_file():
            parts.insert(1, "## Files\n")
        for file in files:
            shown = file.name if path.is_file() else str(file.relative_to(path))
            content = file.read_text(encoding="utf-8").rstrip()
            parts.append(f"### {shown}\n\n````{_CODE[file.suffix or file.name]}\n{content}\n````\n")
        pages[_example_page(path, "")[0]] = "\n".join(parts)
    return pages


def _is_example(file: Path) -> bool:
    """Return whether a file in docs/ belongs to an example, which is no page of the site."""
    return file.is_relative_to(DOCS / "examples")


def _as_path(text: str, file: Path) -> str:
    """Return the text of a link, and the path of its file in the repository."""
    path = f"`{file.relative_to(ROOT)}`"
    return path if path.strip("`").endswith(text.strip("`").rstrip("/")) else f"{text} ({path})"


def copy_pages(to: Path) -> list[Page]:
    """Copy all pages and images to a directory, and return the pages in the order of their paths."""
    sources = {str(path.relative_to(DOCS)): path for path in DOCS.rglob("*.md") if not _is_example(path)}
    pages = []
    for name, source in sorted((sources | ADDED).items()):
        text = adapted(source.read_text(encoding="utf-8"), source)
        if name.startswith("adr/"):
            text = _NOT_FOUND + text
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_text(text, encoding="utf-8")
        pages.append(Page(name, *summary_of(text)))
    for name, page in API.items():
        path = f"api/{name}.md"
        # mkdocstrings replaces each line that begins with `:::` by a description.
        text = "\n\n".join([f"# {page['title']}", page["summary"], *[f"::: {each}" for each in page["names"]]])
        (to / path).parent.mkdir(exist_ok=True)
        (to / path).write_text(text, encoding="utf-8")
        pages.append(Page(path, page["title"], page["summary"]))
    for path, text in examples().items():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_text(text, encoding="utf-8")
        pages.append(Page(path, *summary_of(text)))
    shutil.copytree(DOCS / "images", to / "images")
    return pages


def summary_of(text: str) -> tuple[str, str]:
    """Return the title and the first sentence of a page, without links."""
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None, "a page has no title"
    blocks = re.sub(r"^\s*```.*?^\s*```\s*$", "", text[title.end() :], flags=re.MULTILINE | re.DOTALL).split("\n\n")
    prose = [part for part in blocks if part.strip() and not re.match(r"\s*(    |[#|!<-])", part.lstrip("\n"))]
    first = " ".join(prose[0].split()) if prose else ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)
    sentence = re.match(r".*?[.:](?=\s|$)", plain)
    return title[1], (sentence[0] if sentence else plain).rstrip(":")


def index_of(pages: list[Page], config: dict[str, Any]) -> str:
    """Return the content of `llms.txt`: all pages by section, with their first sentences."""
    by_path = {page.path: page for page in pages}
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}.", ""]
    for section, paths in sections(config["nav"]):
        lines += [f"## {section}", ""]
        lines += [f"- [{by_path[path].title}]({_url(path)}): {by_path[path].summary}" for path in paths]
        lines.append("")
    return "\n".join(lines)


def _url(path: str) -> str:
    """Return the URL of a page, relative to the root of the site."""
    return f"{path.removesuffix('.md')}/".removesuffix("index/") or "./"


def sections(nav: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each section of the navigation, and the paths of its pages."""
    for entry in nav:
        for title, content in entry.items():
            yield title, [*_paths(content)]


def _paths(content: str | list[dict[str, Any]]) -> Iterator[str]:
    """Yield the paths of the pages of a part of the navigation."""
    if isinstance(content, str):
        yield content
    else:
        for entry in content:
            for inner in entry.values():
                yield from _paths(inner)


def title() -> str:
    """Return the name of the site: sandq, and the version that the pages describe."""
    text = (ROOT / "sandq" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+?)(?:\.dev\d+)?"$', text, re.MULTILINE)
    assert version is not None, "sandq/__init__.py has no version"
    return f"sandq {version[1]}"


def pack(site: Path, archive: Path) -> None:
    """Write all files of a directory to an archive. The same files give the same bytes."""
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(site.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(site).as_posix(), _ARCHIVE_TIME)
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)


def build(to: Path = BUILD) -> int:
    """Build the site and its archive in a directory. Return the exit code of Zensical."""
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.is_file():
        raise SystemExit("zensical is not installed: run `make docs`")
    shutil.rmtree(to, ignore_errors=True)
    pages = copy_pages(to / "pages")
    shutil.copy(STYLES, to / "pages")
    text = CONFIG.read_text(encoding="utf-8").replace('site_name = "sandq"', f'site_name = "{title()}"')
    text = text.replace('paths = ["../.."]', f"paths = [{json.dumps(str(ROOT))}]")
    (to / CONFIG.name).write_text(text, encoding="utf-8")
    done = subprocess.run([zensical, "build", "--strict", "--clean"], cwd=to, check=False)
    if done.returncode == 0:
        site = to / "site"
        for name in UNUSED:
            shutil.rmtree(site / name) if (site / name).is_dir() else (site / name).unlink()
        (site / "llms.txt").write_text(index_of(pages, tomllib.loads(text)["project"]), encoding="utf-8")
        pack(site, to / "site.zip")
    return done.returncode


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(build())
