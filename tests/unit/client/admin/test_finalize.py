"""Tests of raising the feature level: an irreversible request is sent once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sandq.client.admin import cluster
from sandq.client.transport.cluster import Cluster
from sandq.protocol.requests_admin import Finalize


@pytest.mark.parametrize("dry_run", [True, False])
async def test_finalize_is_not_retried(monkeypatch: pytest.MonkeyPatch, dry_run: bool) -> None:
    asked: list[tuple[Finalize, bool]] = []

    async def call(cluster: Cluster, request: Finalize, *, idempotent: bool = True) -> list[Any]:
        asked.append((request, idempotent))
        return [0, 1, {"before": 15, "after": 16}]

    monkeypatch.setattr(cluster, "call", call)
    made = cluster.ClusterAdmin.__new__(cluster.ClusterAdmin)
    made._cluster = cast("Cluster", None)
    finalize = cluster.ClusterAdmin.finalize.__wrapped__  # type: ignore[attr-defined]
    assert await finalize(made, dry_run=dry_run) == (15, 16)
    assert asked == [(Finalize(dry_run), dry_run)], "a second request would get the answer that nothing is left to do"
