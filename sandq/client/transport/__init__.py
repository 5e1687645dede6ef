"""Connections to the nodes, the client's view of the cluster, and single requests.

The exported names are for programs that send their own requests through `sandq.client.cluster_of`.
"""

from __future__ import annotations

from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call, call_leader, each

__all__ = ["Cluster", "call", "call_leader", "each"]
