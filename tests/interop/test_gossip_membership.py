"""Members of the native backend keep the promises of `Membership` among themselves."""

from __future__ import annotations

from tests.support.gossip.membership_contract import ClusterContract


class TestGossip(ClusterContract):
    pass
