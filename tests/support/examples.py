"""Choose the number of examples of random tests.

`make test` runs the same few examples each time. `make test-fast` (TEST_FAST=1) runs fewer of these examples.
`make test-long` (TEST_RANDOM=1) runs more examples, which are new each time."""

from __future__ import annotations

import os

import pytest

IS_RANDOM = bool(os.environ.get("TEST_RANDOM"))
IS_FAST = bool(os.environ.get("TEST_FAST"))


def examples(thorough: int) -> int:
    """Return the number of examples for Hypothesis. If they are the same each time, use a fifth of the full number."""
    return thorough if IS_RANDOM else -(-thorough // (25 if IS_FAST else 5))


def seeds(few: int, all_of_them: int) -> list[object]:
    """Return the parameters of a test: `few` seeds, and the others marked `long`."""
    rest = [pytest.param(seed, marks=pytest.mark.long) for seed in range(few, all_of_them)]
    return [*range(few), *rest]
