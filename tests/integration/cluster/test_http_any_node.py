"""HTTP on every node answers for the whole cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx

from tests.support.http_client import NO_TLS
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.waiting import PATIENCE_S, until_answer, until_holds


async def test_http_requests_are_routed_to_leaders_on_other_nodes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path, LISTEN__HTTP="127.0.0.1:0") as nodes:
        for serving in nodes.running.values():
            await until_holds(lambda serving=serving: len(serving.broker.metadata.nodes) == 3)  # type: ignore[misc]
        urls = {name: f"http://{nodes.running[name].http}" for name in NAMES}
        async with httpx.AsyncClient(verify=NO_TLS, timeout=PATIENCE_S) as web:
            made = await web.post(f"{urls['node2']}/topics", json={"name": "t", "partitions": 3, "replicas": 3})
            assert made.status_code == 201, made.text
            for number in range(9):
                url = f"{urls[NAMES[number % 3]]}/topics/t/{number // 3}"
                stored = await web.post(url, json={"text": f"m{number}"})
                assert stored.status_code == 201, stored.text

            async def leaders() -> list[str | None]:
                return (await web.get(f"{urls['node3']}/topics/t")).json()["leaders"]  # type: ignore[no-any-return]

            # Each node leads one partition, so most requests below need another node.
            await until_answer(leaders, lambda found: set(found) == {*NAMES})
            got = []
            while len(got) < 9:
                url = f"{urls[NAMES[len(got) % 3]]}/topics/t/groups/g/lease"
                leased = await web.post(url, json={"max": 10, "wait": "5s", "ack": True})
                assert leased.status_code == 200, leased.text
                got += [message["text"] for message in leased.json()["messages"]]
            assert sorted(got) == [f"m{number}" for number in range(9)]
            for url in urls.values():
                # A node uses its known routes. An election, or the report of its result, may be in progress.
                await until_answer(partial(web.get, f"{url}/readyz"), lambda answer: answer.status_code == 200)
                assert len((await web.get(f"{url}/cluster/nodes")).json()["nodes"]) == 3

                # Rows of all three leaders are combined, whichever node is asked.
                async def overview(url: str = url) -> tuple[list[tuple[str, int, int]], dict[str, str]]:
                    told = (await web.get(f"{url}/overview")).json()
                    rows = [(row["topic"], row["partitions"], row["without_leader"]) for row in told["topics"]]
                    return rows, told["missing"]

                await until_answer(overview, lambda told: told == ([("t", 3, 0)], {}))
