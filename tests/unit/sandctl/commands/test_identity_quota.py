"""Tests that `sandctl identity quota` limits an identity, and that `show` shows its limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandq.client import Identity
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient


class FakeAccess:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def identities(self) -> list[Identity]:
        used = {"topics": 2, "requests": 7}
        return [Identity("token:app", ["writer"], NOW_MS, None, {"topics": 3}, "", used)]

    async def update_identity(self, principal: str, *, quota: dict[str, Any]) -> Identity:
        self.asked.append((principal, quota))
        return Identity(principal, ["writer"], NOW_MS, None, {"topics": 3}, "")


@pytest.fixture
def access(client: FakeClient) -> FakeAccess:
    client.admin = FakeAccess()  # type: ignore[assignment]
    return client.admin  # type: ignore[return-value]


def test_bounds_are_read_as_people_write_them(offline: Ctl, access: FakeAccess) -> None:
    told = offline(
        *("identity", "quota", "token:app", "--requests-per-s", "100", "--stored-bytes", "10GiB"),
        *("--bytes-per-s", "64KiB", "--max-delay", "30d", "--partitions", "0", "--topics", "none"),
    )
    assert told.exit_code == 0 and "token:app has topics=3" in told.stdout
    wanted = {"requests_per_s": 100, "stored_bytes": 10 << 30, "bytes_per_s": 64 << 10}
    assert access.asked == [("token:app", {**wanted, "max_delay": "30d", "partitions": 0, "topics": None})]


@pytest.mark.parametrize(
    "wrong", [("--topics", "many"), ("--topics", "1KiB"), ("--stored-bytes", "1GB"), ("--topics", "-1"), ()]
)
def test_invalid_bound_is_reported(offline: Ctl, access: FakeAccess, wrong: tuple[str, ...]) -> None:
    assert offline("identity", "quota", "token:app", *wrong).exit_code == 2
    assert access.asked == []


def test_show_prints_the_quota_and_its_usage(offline: Ctl, access: FakeAccess) -> None:
    found = json.loads(offline("identity", "show", "token:app", "-o", "json").stdout)
    assert found["quota"] == {"topics": 3} and found["used"] == {"topics": 2, "requests": 7}
    assert "topics=2" in offline("identity", "show", "token:app").stdout
    nobody = offline("identity", "show", "token:nobody")
    assert nobody.exit_code == 1 and "identity list" in nobody.stderr
