"""How much is tried: `make test` tries the same little each time, `make test-long` (TEST_RANDOM=1) more, and new."""

from __future__ import annotations

import os

import pytest

IS_RANDOM = bool(os.environ.get("TEST_RANDOM"))


def examples(thorough: int) -> int:
    """How many examples hypothesis tries: a third where they are the same each time."""
    return thorough if IS_RANDOM else -(-thorough // 3)


def seeds(few: int, all_of_them: int) -> list[object]:
    """Parameters of a test: `few` seeds, and the others with `make test-long`."""
    rest = [pytest.param(seed, marks=pytest.mark.long) for seed in range(few, all_of_them)]
    return [*range(few), *rest]
