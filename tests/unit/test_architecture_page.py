"""Tests that the request paths in docs/architecture.md name existing modules and give the right counts."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import document
from tests.support.paths import ROOT

PAGE = document("architecture")
PATHS = PAGE[PAGE.index("## The path of a request") : PAGE.index("## One message")]
COMMON = re.findall(r"^\| (?:in|commit|apply)? ?\| `([^|]+)` \|", PATHS, re.MULTILINE)


def modules_of(text: str) -> list[str]:
    """Return the modules that a text names. A module without a folder is in the folder of the previous module."""
    found: list[str] = []
    for name in re.findall(r"`([a-z_/]+)`", text):
        found.append(name if "/" in name else f"{found[-1].rpartition('/')[0]}/{name}")
    return found


def test_common_modules_exist() -> None:
    assert len(COMMON) == 15
    for name in modules_of(" ".join(f"`{each}`" for each in COMMON)):
        assert (ROOT / "sandq" / f"{name}.py").is_file(), name


@pytest.mark.parametrize("request_", ["PRODUCE", "LEASE", "CANCEL"])
def test_path_names_its_modules_and_their_number(request_: str) -> None:
    (text,) = re.findall(rf"^- \*\*{request_}\*\*: (.*?)(?=^- |\Z)", PATHS, re.MULTILINE | re.DOTALL)
    path, number = re.findall(r"(.*?)(\d+)\s+modules[.,]", text, re.DOTALL)[0]
    own = modules_of(path)
    for name in own:
        assert (ROOT / "sandq" / f"{name}.py").is_file(), name
    left_out = re.findall(r"modules, without\s+`([a-z_/]+)`", text)
    assert set(left_out) <= set(COMMON)
    assert len(COMMON) - len(left_out) + len(own) == int(number)


def test_path_of_a_post_names_its_modules_and_their_number() -> None:
    (text,) = re.findall(r"^- \*\*POST\*\*: (.*?)\Z", PATHS, re.MULTILINE | re.DOTALL)
    path, number = re.findall(r"(.*?)(\d+)\s+modules\.", text, re.DOTALL)[0]
    own = modules_of(path)
    for name in own:
        assert (ROOT / "sandq" / f"{name}.py").is_file(), name
    assert len(own) == int(number)
