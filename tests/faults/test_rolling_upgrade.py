"""A cluster of the version that was tagged last is upgraded node by node to this one, under load, and goes back once.

The version before comes out of the history of this repository: what it left behind is in no wheel that could be had.
"""

from __future__ import annotations

import random
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
import trio

from sandq.errors import Conflict
from sandq.model.features import KNOWN
from tests.support.paths import ROOT
from tests.support.processes.cluster import NAMES, ClusterProcess
from tests.support.processes.load import SETTINGS, under_load
from tests.support.waiting import until_answer

TAGGED = "aa620304"
"""The commit of v0.2.0."""
TAGGED_LEVEL = 1
NEW = {"SANDQ_SECURITY__INSECURE": "false", "SANDQ_CLUSTER__FINALIZE": "manual"}
"""What the version before does not know."""


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version that was tagged last."""
    directory = tmp_path_factory.mktemp("tagged")
    told = subprocess.run(["git", "archive", TAGGED, "sandq"], cwd=ROOT, capture_output=True, check=False)
    assert told.returncode == 0, f"the history of this clone has no {TAGGED}: {told.stderr.decode()}"
    with tarfile.open(fileobj=BytesIO(told.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.mark.long
def test_it_is_upgraded_under_load_and_nothing_is_lost(
    tagged: Path, make_cluster: Callable[..., ClusterProcess]
) -> None:
    cluster = make_cluster(anew=True, SANDQ_STORAGE__SEGMENT_BYTES="1048576")
    rng = random.Random(16)

    def run(name: str, sources: Path) -> None:
        environ = cluster.nodes[name].environ
        environ["PYTHONPATH"] = str(sources)
        for key, value in NEW.items():
            environ.pop(key, None)
            if sources == ROOT:
                environ[key] = value
        cluster.start(name)

    def again(name: str, sources: Path) -> None:
        assert cluster.nodes[name].stop() == 0, cluster.output()
        run(name, sources)

    async def scenario() -> None:
        for name in NAMES:
            await trio.to_thread.run_sync(run, name, tagged)
        async with cluster.connect() as client:
            await cluster.create(client, partitions=3, **SETTINGS)
            async with under_load(client, rng) as record:
                await record.goes_on()
                # There, back, and there for good.
                for name, sources in (("node1", ROOT), ("node2", ROOT), ("node1", tagged), ("node1", ROOT)):
                    await trio.to_thread.run_sync(again, name, sources)
                    await record.goes_on()
                with pytest.raises(Conflict, match=f"node3 knows {TAGGED_LEVEL}"):
                    await client.admin.finalize()
                await trio.to_thread.run_sync(again, "node3", ROOT)
                await record.goes_on()
                await until_answer(client.admin.cluster, lambda info: info["feature_level_next"] == KNOWN.highest)
                assert (await client.admin.cluster())["feature_level"] == TAGGED_LEVEL
                assert await client.admin.finalize() == (TAGGED_LEVEL, KNOWN.highest)
                await record.goes_on()
        record.judge(16)
        # There is no way back, and it says so.
        assert cluster.nodes["node2"].stop() == 0
        cluster.nodes["node2"].environ["PYTHONPATH"] = str(tagged)
        for key in NEW:
            del cluster.nodes["node2"].environ[key]
        cluster.nodes["node2"].start(wait=False)
        assert cluster.nodes["node2"].ended() != 0
        assert f"{KNOWN.highest}" in cluster.nodes["node2"].output().splitlines()[-1]

    trio.run(scenario)
    assert [cluster.nodes[name].stop() for name in NAMES if name != "node2"] == [0, 0], cluster.output()
