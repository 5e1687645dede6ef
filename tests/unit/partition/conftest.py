from __future__ import annotations

import pytest

from tests.support.partition.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
