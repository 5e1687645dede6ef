"""Import the scripts of packaging/ by their paths, because the directory is not a Python package."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.support.paths import ROOT


def packaging_script(name: str) -> Any:
    """Return the module of packaging/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"sandq_{name}", ROOT / "packaging" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def release() -> Any:
    """Return packaging/release.py."""
    return packaging_script("release")
