"""packaging/release.py, which is no package of ours: a module by its path."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.support.paths import ROOT


def release() -> Any:
    spec = importlib.util.spec_from_file_location("sandq_release", ROOT / "packaging" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
