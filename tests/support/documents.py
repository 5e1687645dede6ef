"""Read a document of docs/ whose sections are spread over several pages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT

_FENCED = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.MULTILINE | re.DOTALL)


def pages(name: str) -> list[Path]:
    """Return the path of docs/NAME.md, and those of the pages in docs/NAME/, in the order of the links to them."""
    first = ROOT / "docs" / f"{name}.md"
    linked = re.findall(rf"\]\(({name}/[a-z-]+\.md)\)", first.read_text(encoding="utf-8"))
    return [first, *dict.fromkeys(ROOT / "docs" / path for path in linked)]


def document(name: str) -> str:
    """Return the text of docs/NAME.md and of the pages in docs/NAME/ as one page.

    A page is a section of it. If a page only groups sections, without a text of its own, its heading is left out."""
    first, *others = [path.read_text(encoding="utf-8") for path in pages(name)]
    return "\n".join([first, *map(_as_sections, others)])


def _as_sections(page: str) -> str:
    heading, _, text = page.partition("\n")
    if text.lstrip().startswith("## "):
        return text
    parts = _FENCED.split(f"{heading}\n{text}")
    return "".join(part if number % 2 else re.sub("^#", "##", part, flags=re.M) for number, part in enumerate(parts))
