"""Changes of topics and nodes at the request of clients. The metadata leader makes these changes."""

from __future__ import annotations

import trio

from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.catalog import Catalog
from sandq.broker.controller.metadata_changes import MetadataChanges
from sandq.broker.controller.node_administration import NodeAdministration
from sandq.broker.controller.topic_administration import TopicAdministration
from sandq.broker.controller.topic_placement import TopicPlacement
from sandq.broker.controller.topic_restores import TopicRestores
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.routes import Routes
from sandq.broker.replication.node_log import NodeLog
from sandq.model.auto_create import NO_AUTO_CREATE, AutoCreate
from sandq.model.limits import Limits
from sandq.model.push_targets import PushRules


class Administration:
    """The components that change topics, restore topics, and change nodes. Only one change runs at a time."""

    def __init__(
        self,
        *,
        node_log: NodeLog,
        catalog: Catalog,
        progress: MetadataProgress,
        routes: Routes,
        limits: Limits,
        links: PeerLinks,
        nursery: trio.Nursery,
        push_rules: PushRules,
        restores: WholeRestores,
        auto_create: AutoCreate = NO_AUTO_CREATE,
    ) -> None:
        """`nursery` must outlive every connection. `auto_create`: rules for the topics that are created on first
        use."""
        self.changes = MetadataChanges(node_log, progress, links, nursery)
        self.topics = TopicAdministration(
            node_id=node_log.node_id,
            changes=self.changes,
            placement=TopicPlacement(self.changes, limits, links),
            catalog=catalog,
            routes=routes,
            push_rules=push_rules,
            auto_create=auto_create,
            auto_created_most=limits.auto_created_topics,
        )
        self.restores = TopicRestores(self.changes, self.topics, restores)
        self.nodes = NodeAdministration(self.changes, catalog, routes, links)
