"""Administration: topics, groups, the cluster, permissions, and overviews."""

from __future__ import annotations

from sandq.client.admin.access import AccessAdmin
from sandq.client.admin.groups import GroupAdmin
from sandq.client.admin.limits import LimitAdmin
from sandq.client.admin.overview import OverviewAdmin
from sandq.client.admin.topics import TopicAdmin
from sandq.client.transport.cluster import Cluster


class Admin(TopicAdmin, GroupAdmin, LimitAdmin, AccessAdmin, OverviewAdmin):
    """`client.admin`. Requests are retried within the client's `timeout` if that is safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
