"""Save data of this version, which tests of later versions open: `python -m tests.support.release_data`.

The command makes `tests/data/level-N.tar.xz`, where N is the highest feature level of this version. The archive holds
the data directory of a node that was stopped once, started again, and killed. Run the command when a version is tagged,
and before that whenever the data format of an untagged level changes. `tests/integration/test_data_of_releases.py`
opens all archives."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

import trio

import sandq
from sandq.model.features import KNOWN
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess

ARCHIVES = ROOT / "tests" / "data"
LATER = "2100-01-01T00:00:00Z"
LATER_STILL = "2101-01-01T00:00:00Z"
FOREVER = {"group_ttl": "none"}


async def first_life(client: sandq.Client) -> None:
    """Store acked, leased, waiting, delayed and dead messages, and keys."""
    await client.admin.create_topic("jobs", partitions=2, **FOREVER)
    await client.produce_many("jobs", [{"value": f"job {n}", "key": f"k{n % 7}"} for n in range(100)])
    taken = await client.leases("jobs", "work").take(40, wait="30s", lease="10s")
    await client.leases("jobs", "work").ack(taken[:30])
    await client.leases("jobs", "work").nack(taken[30:35], delay="10s", error="not now")
    await client.produce_many("jobs", [{"value": f"later {n}", "deliver_at": LATER} for n in range(50)])
    await client.produce("jobs", "invoice", deliver_at=LATER, unique_key="invoice-1")

    await client.admin.create_topic("poison", max_attempts=1, **FOREVER)
    await client.produce_many("poison", [f"bad {n}" for n in range(3)])
    dying = await client.leases("poison", "work").take(2, wait="30s")
    await client.leases("poison", "work").nack(dying, error="cannot be read")

    await client.admin.create_topic("config", kind="compacted", partitions=2, **FOREVER)
    keys = client.kv("config")
    await keys.put_many([(f"key {n}", f"value {n}") for n in range(20)])
    await keys.put("key 3", "another")
    await keys.delete("key 4")


async def second_life(client: sandq.Client) -> None:
    """Make changes that are only in the log when the node is killed."""
    await client.produce_many("jobs", [f"second {n}" for n in range(20)])
    await client.messages("jobs").move(unique_key="invoice-1", deliver_at=LATER_STILL)
    async for message in client.messages("jobs").list(state="delayed", values=True, limit=1):
        await client.messages("jobs").cancel(message.id)
    await client.kv("config").put("key 5", "after the start")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        node = NodeProcess(Path(temporary), SANDQ_STORAGE__SEGMENT_BYTES="1MiB", SANDQ_LIMITS__DELAY_DAYS="40000")
        try:
            for life in (first_life, second_life):
                node.start()
                trio.run(lived, node.address, life)
                if life is first_life:
                    assert node.stop() == 0
            node.kill()
        finally:
            node.close()
        ARCHIVES.mkdir(exist_ok=True)
        with tarfile.open(ARCHIVES / f"level-{KNOWN.highest}.tar.xz", "w:xz") as archive:
            archive.add(node.data_dir, "data", filter=_nobodys)


async def lived(address: str, life: object) -> None:
    async with sandq.connect(address) as client:
        await life(client)  # type: ignore[operator]


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Remove the owner and the files that depend on the machine."""
    if Path(member.name).name in ("lock", "LOG", "LOG.old"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
