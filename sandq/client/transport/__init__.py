"""Connections to the nodes, the client's view of the cluster, and single requests.

The exported names are for programs that send their own requests to the cluster that `sandq.client.cluster_of` returns.
"""

from __future__ import annotations

from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call, call_leader, each

__all__ = ["Cluster", "call", "call_leader", "each"]
