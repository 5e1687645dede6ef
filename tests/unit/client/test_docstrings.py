"""Tests that everything public in the client has a docstring."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import sandq


def undocumented(module: ModuleType) -> list[str]:
    """Return the public names of a module, and of its classes, without a docstring."""
    missing = []
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, ModuleType):
            continue
        if not inspect.getdoc(found):
            missing.append(name)
        if inspect.isclass(found) and found.__module__.startswith("sandq"):
            missing += [f"{name}.{member}" for member in vars(found) if not _has_docstring(found, member)]
    return missing


def _has_docstring(kind: type, name: str) -> bool:
    member = inspect.getattr_static(kind, name)
    own = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
    fields = getattr(kind, "_fields", ())
    return name.startswith("_") or not own or name in fields or bool(inspect.getdoc(getattr(kind, name)))


@pytest.mark.parametrize("module", [sandq, sandq.client, sandq.sync, sandq.errors])
def test_everything_public_has_a_docstring(module: ModuleType) -> None:
    assert module.__doc__
    assert undocumented(module) == []


def test_a_missing_one_is_found() -> None:
    module = ModuleType("sandq.made_up", "It has words.")

    class Thing:
        """It has words."""

        def method(self) -> None: ...

    Thing.__module__ = "sandq.made_up"
    module.Thing = Thing  # type: ignore[attr-defined]
    module.__all__ = ["Thing"]  # type: ignore[attr-defined]
    assert undocumented(module) == ["Thing.method"]
