"""Tests of the time that a client waits before it retries."""

from __future__ import annotations

from sandq.client.options import Options
from sandq.errors import QuotaExceeded, Throttled, Unavailable


def test_pause_follows_retry_after_up_to_a_limit() -> None:
    options = Options(back_off_first_s=0.1, back_off_max_s=0.4, retry_after_max_s=5.0)
    assert 0.05 <= options.pause_s(0, Unavailable("no leader")) <= 0.1
    assert options.pause_s(0, Throttled("too many", retry_after_ms=1500)) == 1.5
    assert options.pause_s(9, Throttled("too many", retry_after_ms=1)) >= 0.2
    assert options.pause_s(0, QuotaExceeded("too many", retry_after_ms=1500)) == 1.5
    assert options.pause_s(0, Throttled("one a day", retry_after_ms=86_400_000)) == 5.0
    assert options.pause_s(9, Throttled("strange", retry_after_ms="soon")) <= 0.4
