"""The peers, sandq first."""

from __future__ import annotations

from typing import Final

from benchmarks.peers.beanstalkd import Beanstalkd
from benchmarks.peers.nats import Nats
from benchmarks.peers.peer import Peer
from benchmarks.peers.postgres import Postgres
from benchmarks.peers.rabbitmq import RabbitMQ
from benchmarks.peers.redis import Redis
from benchmarks.peers.sandq_node import Sandq

OURS: Final = "sandq"
PEERS: Final[dict[str, Peer]] = {
    peer.name: peer
    for peer in (
        Sandq(),
        Nats(),
        Redis("always"),
        Redis("everysec"),
        Beanstalkd(0),
        Beanstalkd(50),
        RabbitMQ(),
        Postgres(),
    )
}
