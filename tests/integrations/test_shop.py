"""An application of 30 tasks on one node, and on three nodes while the leader of its queue is killed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.integrations.workers import Worker
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("celery", reason="`make test` installs requirements-workers.lock")

from celery import chain, chord, group
from sandq_workers.celery.beat import store_schedules


class Shop:
    """The application, and a worker with two processes."""

    def __init__(self, directory: Path) -> None:
        import shop_app

        self.tasks: Any = shop_app
        self.directory = directory
        self.worker = Worker("shop_app", "w@h", directory / "worker.log", "-Q", "celery,mails,ranked")

    def get(self, result: Any) -> Any:
        return result.get(timeout=PATIENCE_S)

    def lines(self) -> list[str]:
        path = self.directory / "lines"
        return [line.rpartition(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, *lines: str) -> None:
        wait_until(lambda: {*lines} <= {*self.lines()})


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Shop]]:
    shops: list[Shop] = []

    def start(hosts: str) -> Shop:
        monkeypatch.setenv("CELERY_BROKER_URL", f"sandq://{hosts}/{tmp_path.name}")
        monkeypatch.setenv("LINES", str(tmp_path / "lines"))
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        monkeypatch.delitem(sys.modules, "shop_app", raising=False)
        shops.append(Shop(tmp_path))
        return shops[-1]

    yield start
    for shop in shops:
        shop.worker.kill()
        shop.tasks.app.close()


def use_all_tasks(shop: Shop) -> None:
    """Call each task, alone or in a canvas, and check its result."""
    tasks, get = shop.tasks, shop.get
    assert get(tasks.add.delay(2, 3)) == 5
    assert get(chain(tasks.add.s(1, 2), tasks.multiply.s(10), tasks.add.s(1))()) == 31
    assert get(group(tasks.add.s(n, n) for n in range(8))()) == [2 * n for n in range(8)]
    assert get(chord([tasks.multiply.s(n, n) for n in range(6)])(tasks.total.s())) == 55
    nested = chain(tasks.upper.s("a"), group(tasks.upper.s(), tasks.upper.s()), tasks.join.s())
    assert get(nested()) == "A-A"
    assert get(tasks.upper.chunks([("a",), ("b",), ("c",)], 2)()) == [["A", "B"], ["C"]]
    assert get(tasks.upper.map(["x", "y"]).apply_async()) == ["X", "Y"]
    assert get(tasks.echo.delay(1, "ä", key=[None])) == [[1, "ä"], {"key": [None]}]
    assert get(tasks.shared.delay(4)) == -4
    with pytest.raises(ValueError, match="no"):
        get(tasks.fail.apply_async(["no"], link_error=tasks.on_error.s()))
    get(tasks.add.apply_async([20, 1], link=tasks.linked.s()))
    assert get(tasks.flaky.delay(str(shop.directory / f"flaky{len(shop.lines())}"))) == 3
    assert get(tasks.again.delay()) == 2
    with pytest.raises(LookupError, match="hopeless"):
        get(tasks.hopeless.delay())
    assert [get(tasks.late.delay(1)), get(tasks.careful.delay(2))] == [1, 2]
    eta = datetime.now(UTC) + timedelta(seconds=0.5)
    assert get(tasks.at_time.apply_async(eta=eta)) >= eta.timestamp()
    assert get(tasks.mail_welcome.delay("ada")) == "welcome ada"
    assert get(tasks.mail_goodbye.delay("ada")) == "goodbye ada"
    assert get(group(tasks.urgent.s(n).set(priority=n) for n in (0, 5, 9))()) == [0, 5, 9]
    times = sorted(get(group(tasks.limited.s(n) for n in range(5))()))
    assert times[-1] - times[0] >= 0.1, "20 tasks per second"
    tasks.forget.delay("forgotten")
    ignored = tasks.ignored.delay()
    wait_until(lambda: ignored.state == "CUSTOM")
    tasks.rejected.delay()
    assert get(tasks.progress.delay()) == "PROGRESS"
    assert get(tasks.slow.delay()) == "too slow"
    about = tasks.about.apply_async(countdown=0.2)
    assert get(about) == {"id": about.id, "queue": "celery", "eta": None}
    assert get(tasks.replaced.delay(1)) == 101
    started = [shop.tasks.app.AsyncResult(task_id) for task_id in get(tasks.fan_out.delay(3))]
    assert [get(one) for one in started] == [1, 2, 3]
    revoked = tasks.urgent.apply_async([7], countdown=0.5)
    revoked.revoke()
    assert revoked.state == "REVOKED"
    shop.wait_for("error-no", "linked-21", "urgent-9", "forgotten", "rejected", "sweep")
    assert "urgent-7" not in shop.lines()


def test_thirty_tasks_on_one_node(node: NodeProcess, start: Callable[[str], Shop]) -> None:
    shop = start(node.address)
    names = [name for name in shop.tasks.app.tasks if name.startswith("shop_app.")]
    assert len(names) == 30
    store_schedules(shop.tasks.app)
    use_all_tasks(shop)
    assert shop.lines().count("rejected") == 1 and shop.worker.stop() == 0


def test_thirty_tasks_on_three_nodes_whose_leader_is_killed(
    tmp_path: Path, start: Callable[[str], Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").mkdir()
    cluster = ClusterProcess(tmp_path / "nodes")
    try:
        cluster.start()

        async def leader_of(topic: str, but: str | None = None) -> str:
            async with cluster.connect() as client:
                return await cluster.leader(client, topic, but=but)

        shop = start(",".join(node.address for node in cluster.nodes.values()))
        store_schedules(shop.tasks.app)
        later = [shop.tasks.add.apply_async([n, 1], countdown=5) for n in range(20)]
        first = trio.run(leader_of, f"{tmp_path.name}.celery")
        cluster.kill(first)
        sent = [shop.tasks.add.delay(n, 2) for n in range(20)]
        use_all_tasks(shop)
        assert [shop.get(one) for one in (*later, *sent)] == [*range(1, 21), *range(2, 22)]
        assert shop.worker.stop() == 0
    finally:
        cluster.close()
