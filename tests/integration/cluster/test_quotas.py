"""Quotas limit the topics of an owner over all nodes; the audit logs of all nodes form one list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandq.broker.owner_usage import NOTHING
from sandq.client import connect_with
from sandq.client.options import Options
from sandq.errors import QuotaExceeded
from tests.integration.cluster.test_identities import first_token
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

pytestmark = pytest.mark.usefixtures("node_time")


async def test_quota_and_audit_cover_all_nodes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, SECURITY__AUTHENTICATION="require") as nodes:
        options = Options(timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, token=await first_token(nodes))
        servers = tuple(f"127.0.0.1:{nodes.client_ports[name]}" for name in NAMES)
        async with connect_with(options, servers, "boss") as boss:
            made = await boss.admin.create_token("app", ["admin"], quota={"pending_messages": 9, "topics": 1})
            impatient = replace(options, waits_for_quota=False, token=made.text)
            async with connect_with(impatient, servers, "app") as app:
                record = await app.admin.create_topic("t", partitions=3, replicas=3)
                assert record.owner == "token:app"
                with pytest.raises(QuotaExceeded) as refused:
                    await app.admin.create_topic("u")
                assert (refused.value.details["quota"], refused.value.retriable) == ("topics", False)
                for partition in range(3):
                    for _ in range(3):
                        await app.produce("t", b"v", delay="1h", partition=partition)
                usages = [serving.usage for serving in nodes.running.values()]
                await until_holds(
                    lambda: all(usage.held.get("token:app", NOTHING).pending_messages == 9 for usage in usages)
                )
                for partition in range(3):
                    with pytest.raises(QuotaExceeded):
                        await app.produce("t", b"v", delay="1h", partition=partition)
                await app.produce("t", b"v")
            (mine,) = [one for one in await boss.admin.identities() if one.principal == "token:app"]
            assert (mine.used["topics"], mine.used["partitions"], mine.used["pending_messages"]) == (1, 3, 9)
            page = await until_answer(boss.admin.audit, lambda page: len(page.lines) >= 3)
            assert not page.missing and page.position.count("=") == 3
            told = [(line["principal"], line["request"], line["result"]) for line in page.lines]
            assert ("token:admin", "identity_put", "ok") in told
            assert ("token:app", "topic_create", "QUOTA") in told
