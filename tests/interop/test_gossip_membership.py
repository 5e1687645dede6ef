"""The native backend, its members among themselves."""

from __future__ import annotations

from tests.interop.membership_contract import ClusterContract


class TestGossip(ClusterContract):
    pass
