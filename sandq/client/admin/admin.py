"""Administration: topics, groups, the cluster, who may do what, and what all of it holds and does."""

from __future__ import annotations

from sandq.client.admin.access import AccessAdmin
from sandq.client.admin.groups import GroupAdmin
from sandq.client.admin.overview import OverviewAdmin
from sandq.client.admin.topics import TopicAdmin
from sandq.client.transport.cluster import Cluster


class Admin(TopicAdmin, GroupAdmin, AccessAdmin, OverviewAdmin):
    """`client.admin`. A request is tried again within the client's `timeout` where that is safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
