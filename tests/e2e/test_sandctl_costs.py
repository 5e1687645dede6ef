"""`sandctl` gives messages a cost and groups a rate with a unit; other commands show them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Ctl


@pytest.fixture(scope="module")
def ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    node.start()
    yield Ctl(node)
    node.close()


def test_produce_gives_messages_a_cost(ctl: Ctl) -> None:
    ctl("topic create prompts")
    ctl("produce prompts first --cost 1200")
    ctl("produce prompts --jsonl --cost 3", stdin="\n".join(map(json.dumps, [{"text": "a"}, {"text": "b", "cost": 4}])))
    assert [one.get("cost") for one in ctl.json("message list prompts")] == [1200, 3, 4]
    first = ctl.json("message list prompts")[0]["id"]
    assert "cost       1,200" in ctl("message why prompts", first).out
    ctl("schedule create prompts hourly m --every 1h --cost 9")
    assert ctl.json("schedule show prompts hourly")["cost"] == 9
    assert "cost" in ctl("produce prompts m --cost 0", code=2).err


def test_group_has_a_rate_with_a_unit(ctl: Ctl) -> None:
    ctl("topic create calls")
    ctl("produce calls m")
    ctl("consume calls -g workers --max 1")
    ctl("group limit calls workers --rate 90000/m --unit tokens --max-in-flight 50")
    assert ctl.json("group show calls workers")["limits"]["unit"] == "tokens"
    assert "tokens, 1500 at once" in ctl("group show calls workers").out
    assert "unit: it goes with a rate only" in ctl("group limit calls workers --unit tokens", code=2).err
