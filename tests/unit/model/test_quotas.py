from __future__ import annotations

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.quotas import NAMES, Quota


def test_quota_record_has_only_set_fields() -> None:
    quota = Quota().changed({"topics": 3, "max_delay": "1d", "requests_per_s": 0})
    assert quota.record() == {"requests_per_s": 0, "topics": 3, "max_delay_ms": 86_400_000}
    assert Quota.of(quota.record()) == quota
    assert Quota.of({**quota.record(), "of a later version": 1}) == quota
    assert quota.changed({"topics": None, "max_delay": None}).record() == {"requests_per_s": 0}


def test_every_mistake_is_reported() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Quota().changed({"topics": -1, "bytes_per_s": True, "x": 1, "max_delay": "soon"})
    message = caught.value.message
    assert all(name in message for name in ("topics:", "bytes_per_s:", "x: no such quota", "soon", *NAMES))
