"""Connections to nodes, what is known of the cluster, and single requests.

What is exported is for programs that send requests of their own, to the cluster that `sandq.client.cluster_of` gives.
"""

from __future__ import annotations

from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call, call_leader, each

__all__ = ["Cluster", "call", "call_leader", "each"]
