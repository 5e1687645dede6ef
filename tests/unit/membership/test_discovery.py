"""Tests of the backend that a configuration selects, and of the checks before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.gossip.tags import judge_of, node_tags
from sandq.membership.discovery import Discovery
from sandq.membership.gossip_backend import GossipMembership
from sandq.membership.serf_backend import SerfMembership
from sandq.membership.static_backend import StaticMembership
from sandq.model.config import load_config
from sandq.model.config_schema import Address
from sandq.model.errors import ConfigError, StartupError
from sandq.storage import known_addresses
from sandq.storage.memory_files import MemoryFiles


def discovery(files: MemoryFiles | None = None, zone: str = "a", **environ: str) -> Discovery:
    """Return the discovery of a node with these settings from the environment."""
    config = load_config(None, {"SANDQ_CLUSTER__BOOTSTRAP": "true", **{f"SANDQ_{k}": v for k, v in environ.items()}})

    def tags() -> dict[str, str]:
        return node_tags(
            node=config.node.id,
            cluster="sandq",
            cluster_uuid=None,
            store_uuid="0" * 36,
            zone=zone,
            version="1",
            zone_data="1",
            addresses={},
        )

    return Discovery(
        config,
        secrets=None,
        tags=tags,
        judge=judge_of("sandq", lambda: None),
        files=files or MemoryFiles(),
        now_ms=lambda: 0,
        on_round_trip=lambda seconds: None,
    )


def test_each_membership_has_its_backend() -> None:
    backends = {"gossip": GossipMembership, "serf": SerfMembership, "static": StaticMembership}
    for name, backend in backends.items():
        assert type(discovery(CLUSTER__MEMBERSHIP=name).membership) is backend


def test_tags_that_will_not_fit_are_said_at_the_start() -> None:
    """The tags are refused even if only the later cluster UUID makes them too large."""
    discovery(zone="z" * 200)
    for size in (400, 450, 600):
        with pytest.raises(StartupError, match=r"do not fit.*shorten node\.id"):
            discovery(zone="z" * size)


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with pytest.raises(StartupError, match="cannot be read"):
        discovery(GOSSIP__KEYS_FILE=str(keys))
    keys.write_text("short\n")
    keys.chmod(0o644)
    with pytest.raises(StartupError, match="chmod 600"):
        discovery(GOSSIP__KEYS_FILE=str(keys))
    keys.chmod(0o600)
    with pytest.raises(ConfigError, match="keys:1"):
        discovery(GOSSIP__KEYS_FILE=str(keys))
    discovery(GOSSIP__KEYS_FILE=str(keys), GOSSIP__ENCRYPT="false")


def test_a_damaged_list_of_addresses_is_as_good_as_none() -> None:
    files = MemoryFiles()
    known_addresses.save(files, [Address("127.0.0.1", 9900)])
    discovery(files)
    files.replace(known_addresses.NAME, b"damaged")
    discovery(files)
