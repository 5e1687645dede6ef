"""The native backend, its members among themselves."""

from __future__ import annotations

from tests.support.gossip.membership_contract import ClusterContract


class TestGossip(ClusterContract):
    pass
