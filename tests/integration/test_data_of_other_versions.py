"""Data of another version is refused before anything is written, by a node and by the tools that read data."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sandq.model.config import NodeConfig
from sandq.model.errors import StartupError
from sandq.node import run_node
from sandq.storage import small_file
from sandq.storage.identity import MAGIC, VERSION
from sandq.tools.doctor.check_data import DataDirectory
from sandq.tools.recover import recover
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S

OF_DEVELOPMENT = bytes.fromhex(
    "53414e445149444e 01000000 3e000000 f18b0563 83 a46e6f6465a26e31"
    "a573746f7265d92436613230346264382d396633632d346237652d386130652d306332613266306436663131 a7636c7573746572c0"
)
"""Identity file of a node of a development version."""
NEWER = small_file.encode(MAGIC, VERSION + 1, {"anything": "else"})


async def written(config: NodeConfig) -> Path:
    """Let a node write data and end without a checkpoint: LevelDB keeps a log, which it deletes when it is opened."""
    with trio.CancelScope() as scope:
        async with run_node(config) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await client.produce("t", "kept")
            scope.cancel()
            await trio.sleep_forever()
    data = Path(config.node.data_dir)
    assert [path for path in (data / "stores.level").iterdir() if path.suffix == ".log"]
    return data


def picture(data: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the time of every file."""
    files = [path for path in data.rglob("*") if path.is_file()]
    return {str(path.relative_to(data)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("has_lock_file", [True, False])
@pytest.mark.parametrize(
    ("content", "reason"), [(OF_DEVELOPMENT, "by a development version of sandq"), (NEWER, "start that version")]
)
async def test_data_of_another_version_is_refused_and_left_as_it_is(
    tmp_path: Path, content: bytes, reason: str, has_lock_file: bool
) -> None:
    config = small_config(tmp_path)
    data = await written(config)
    (data / "identity").write_bytes(content)
    if not has_lock_file:
        (data / "lock").unlink()
    before = picture(data)
    with pytest.raises(StartupError, match=reason), trio.fail_after(PATIENCE_S):
        async with run_node(config):
            raise AssertionError("it serves")
    for is_dry_run in (True, False):
        with pytest.raises(StartupError, match=reason):
            recover(config, ["node2"], dry_run=is_dry_run)
    checks = list(DataDirectory(data, "node1").checks())
    (refused,) = [check for check in checks if check.state == "failed"]
    assert refused.what == "identity" == checks[-1].what, "the log and the stores must not be read"
    assert reason in refused.found
    assert picture(data) == before
