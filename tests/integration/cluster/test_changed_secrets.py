"""Change the secret of a running cluster: no request fails, and the old secret is no longer accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from sandq.broker.peers import secret
from tests.support.nodes.found import FoundNodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_holds

THREE = ("node1", "node2", "node3")
OLD, NEW = b"the old one, as long as it has to be", b"the new one, as long as it has to be"


def write(directory: Path, name: str, *secrets: bytes) -> str:
    """Replace the file atomically, so that it is complete whenever it is read."""
    path = directory / f"{name}.secret"
    new = path.with_suffix(".new")
    new.write_bytes(b"\n---\n".join(secrets))
    new.chmod(0o600)
    new.rename(path)
    return str(path)


async def test_secret_is_changed_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "CHECK_S", 0.05)
    sent: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nodes = FoundNodes(tmp_path, nursery)
        nodes.own = {name: {"CLUSTER__SECRET_FILE": write(tmp_path, name, OLD)} for name in THREE}
        await nodes.start(*THREE)
        await nodes.until_registered(*THREE)
        async with nodes.connect(*THREE) as client, trio.open_nursery() as load:
            await client.admin.create_topic("t", partitions=3, replicas=3)

            is_over = trio.Event()

            async def produce() -> None:
                while not is_over.is_set():
                    await client.produce("t", b"%d" % len(sent))
                    sent.append(b"%d" % len(sent))

            load.start_soon(produce)
            for step in ((OLD, NEW), (NEW, OLD), (NEW,)):
                with capture_logs() as log:
                    for name in THREE:
                        write(tmp_path, name, *step)
                        count = 1 + THREE.index(name)
                        await until_holds(
                            lambda log=log, count=count: (
                                [entry["event"] for entry in log].count("the secrets were read again") == count
                            )
                        )
                        before = len(sent)
                        await until_holds(lambda before=before: len(sent) >= before + 10)
                if step != (NEW,):
                    assert "a link has ended" not in [entry["event"] for entry in log]
            is_over.set()
        await nodes.stop("node3")
        with capture_logs() as log:
            write(tmp_path, "node3", OLD)
            nodes.launch("node3")
            await until_holds(lambda: "no key fits" in str([entry.get("error") for entry in log]))
        await nodes.stop("node3")
        write(tmp_path, "node3", NEW)
        await nodes.start("node3")
        await nodes.until_registered(*THREE)
        async with nodes.connect("node3") as client, client.subscribe("t", group="g") as sub:
            assert sorted(values(await take(sub, len(sent)))) == sorted(sent)
        await nodes.stop(*nodes.running)
        nursery.cancel_scope.cancel()
