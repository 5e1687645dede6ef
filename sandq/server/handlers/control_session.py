"""The requests of one connection about stored messages, jobs, groups, topics and the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sandq.broker.broker import Broker
from sandq.broker.queries.kv_queries import KvQueries
from sandq.broker.queries.message_queries import MessageQueries
from sandq.metadata.records import Topic
from sandq.model.errors import SandqError
from sandq.partition.kv.changes import Watch
from sandq.partition.log import pieces as delivery
from sandq.protocol import requests_admin as admin
from sandq.protocol import requests_keys as k
from sandq.protocol import requests_log as r
from sandq.protocol import requests_messages as m
from sandq.protocol.frames import Frame, Type, encode_reply
from sandq.protocol.replies_messages import Piece, encode_pieces
from sandq.server.connection import Connection
from sandq.server.info import ServerInfo
from sandq.server.kv_get_coalescer import KvGetCoalescer

Handler = Callable[[Frame], None]


class ControlSession:
    """`handlers`: by frame type."""

    def __init__(self, broker: Broker, connection: Connection, info: ServerInfo) -> None:
        self._broker = broker
        self._control = MessageQueries(broker)
        self._kv_queries = KvQueries(broker)
        self._kv_get_coalescer = KvGetCoalescer(connection, self._kv_queries)
        self._connection = connection
        self._info = info
        self.handlers: dict[int, Handler] = {
            Type.CANCEL: self._cancel,
            Type.MOVE: self._move,
            Type.GET: self._get,
            Type.WHY: self._why,
            Type.LIST: self._list,
            Type.FETCH: self._fetch,
            Type.MEASURE: self._measure,
            Type.FORECAST: self._forecast,
            Type.KV_GET: self._kv_get_coalescer.add,
            Type.KV_SCAN: self._kv_scan,
            Type.KV_WATCH: self._kv_watch,
            Type.JOB_START: self._job_start,
            Type.JOB_STATUS: self._job_status,
            Type.JOB_STOP: self._job_stop,
            Type.DEAD_LIST: self._dead_list,
            Type.GROUP_LIST: self._group_list,
            Type.GROUP_SEEK: self._group_seek,
            Type.GROUP_DELETE: self._group_delete,
            Type.GROUP_UPDATE: self._group_update,
            Type.HOLD: self._hold,
            Type.TOPIC_CREATE: self._topic_create,
            Type.TOPIC_UPDATE: self._topic_update,
            Type.TOPIC_DELETE: self._topic_delete,
            Type.TOPIC_STATS: self._topic_stats,
            Type.CLUSTER_INFO: self._cluster_info,
            Type.CLUSTER_CLOCK: self._cluster_clock,
            Type.CLUSTER_INIT: self._cluster_init,
            Type.NODE_CHANGE: self._node_change,
            Type.TRANSFER: self._transfer,
        }

    def handled(self) -> None:
        """Everything that one receive brought was handled."""
        self._kv_get_coalescer.flush()

    def _reply(self, request_id: int, *fields: Any) -> None:
        self._connection.reply(request_id, encode_reply(request_id, *fields))

    def _done(self, request_id: int) -> Callable[[Any], None]:
        def done(result: Any) -> None:
            if isinstance(result, SandqError):
                self._connection.send_error(request_id, result)
            else:
                self._reply(request_id, result)

        return done

    def _start(self, frame: Frame, work: Callable[[], Awaitable[Any]]) -> None:
        """Answer with what the work returns: None is a reply without fields, a tuple its fields."""

        async def answer() -> bytes:
            result = await work()
            if result is None:
                return encode_reply(frame[1])
            return encode_reply(frame[1], *(result if isinstance(result, tuple) else (result,)))

        self._connection.start(frame[1], answer)

    # -- stored messages ------------------------------------------------------------------------------------------

    def _cancel(self, frame: Frame) -> None:
        asked = m.Cancel.parse(frame)
        self._control.cancel(asked.topic, asked.partition, asked.targets, self._done(frame[1]))

    def _move(self, frame: Frame) -> None:
        asked = m.Move.parse(frame)
        self._control.move(asked.topic, asked.partition, asked.items, self._done(frame[1]))

    def _get(self, frame: Frame) -> None:
        asked = m.Get.parse(frame)
        self._start(frame, lambda: self._control.get(*asked))

    def _why(self, frame: Frame) -> None:
        asked = m.Why.parse(frame)
        self._start(frame, lambda: self._control.why(*asked))

    def _list(self, frame: Frame) -> None:
        asked = m.List.parse(frame)
        self._start(frame, lambda: self._control.page(*asked))

    def _dead_list(self, frame: Frame) -> None:
        asked = admin.DeadList.parse(frame)
        self._start(frame, lambda: self._control.dead_page(*asked))

    def _fetch(self, frame: Frame) -> None:
        asked = r.Fetch.parse(frame)

        async def fetch() -> bytes:
            number, found = await self._control.fetch(*asked)
            return encode_pieces(frame[1], (found.next, found.closed_ms, found.trimmed, number), _sent(found.pieces))

        self._connection.start(frame[1], fetch)

    def _measure(self, frame: Frame) -> None:
        asked = r.Measure.parse(frame)

        async def measure() -> tuple[Any, ...]:
            number, found = await self._control.measure(*asked)
            return (*found, number)

        self._start(frame, measure)

    def _forecast(self, frame: Frame) -> None:
        asked = m.Forecast.parse(frame)
        self._start(frame, lambda: self._control.forecast(*asked))

    # -- keys -----------------------------------------------------------------------------------------------------

    def _kv_scan(self, frame: Frame) -> None:
        asked = k.KvScan.parse(frame)

        async def scan() -> tuple[int, list[bytes], bytes | None]:
            (found, following), stale_ms = await self._kv_queries.scan(*asked)
            return stale_ms, [part for row in found for part in row], following

        self._start(frame, scan)

    def _kv_watch(self, frame: Frame) -> None:
        asked = k.KvWatch.parse(frame)
        watch = Watch(asked.after, asked.mark, asked.every, asked.start, asked.stop)

        async def changes() -> bytes:
            found = await self._kv_queries.changes(
                asked.topic, asked.partition, watch, asked.max_messages, asked.max_bytes, asked.wait_ms
            )
            return encode_pieces(frame[1], (found.through, found.mark), _sent(found.pieces))

        self._connection.start(frame[1], changes)

    # -- jobs -----------------------------------------------------------------------------------------------------

    def _job_start(self, frame: Frame) -> None:
        asked = m.JobStart.parse(frame)
        self._start(frame, lambda: self._control.start_job(*asked))

    def _job_status(self, frame: Frame) -> None:
        asked = m.JobStatus.parse(frame)
        self._start(frame, lambda: self._control.job(*asked))

    def _job_stop(self, frame: Frame) -> None:
        asked = m.JobStop.parse(frame)
        self._start(frame, lambda: self._control.stop_job(*asked))

    # -- groups ---------------------------------------------------------------------------------------------------

    def _group_list(self, frame: Frame) -> None:
        asked = admin.GroupList.parse(frame)
        self._start(frame, lambda: self._control.groups(asked.topic))

    def _group_seek(self, frame: Frame) -> None:
        asked = admin.GroupSeek.parse(frame)
        self._start(frame, lambda: self._control.seek(*asked))

    def _group_delete(self, frame: Frame) -> None:
        asked = admin.GroupDelete.parse(frame)
        self._start(frame, lambda: self._control.delete_group(*asked))

    def _group_update(self, frame: Frame) -> None:
        asked = admin.GroupUpdate.parse(frame)
        self._start(frame, lambda: self._control.update_group(*asked))

    # -- topics ---------------------------------------------------------------------------------------------------

    def topic_record(self, record: Topic) -> dict[str, Any]:
        leader = self._broker.routes.leader
        return {
            "name": record.name,
            "number": record.number,
            "kind": record.kind,
            "partitions": [
                [at, partition.group, leader(partition.group), partition.nodes, partition.moving]
                for at, partition in enumerate(record.partitions)
            ],
            "initial_partitions": record.initial_partitions,
            "replicas": record.replicas,
            "settings": record.settings,
        }

    def _topic_create(self, frame: Frame) -> None:
        asked = admin.TopicCreate.parse(frame)

        async def create() -> dict[str, Any]:
            # This node may not have opened it yet: it exists all the same, and must not be made a second time.
            return self.topic_record(await self._broker.administration.create_topic(*asked))

        self._start(frame, create)

    def _topic_update(self, frame: Frame) -> None:
        asked = admin.TopicUpdate.parse(frame)

        async def update() -> dict[str, Any]:
            return self.topic_record(await self._broker.administration.update_topic(*asked))

        self._start(frame, update)

    def _topic_delete(self, frame: Frame) -> None:
        asked = admin.TopicDelete.parse(frame)
        self._start(frame, lambda: self._broker.administration.delete_topic(asked.name))

    def _topic_stats(self, frame: Frame) -> None:
        topic = admin.TopicStats.parse(frame).topic
        self._start(frame, lambda: self._control.topic_stats(topic))

    def _hold(self, frame: Frame) -> None:
        asked = admin.Hold.parse(frame)
        self._start(frame, lambda: self._control.hold(*asked))

    # -- the cluster ----------------------------------------------------------------------------------------------

    def _cluster_info(self, frame: Frame) -> None:
        admin.ClusterInfo.parse(frame)
        self._reply(frame[1], self._info.cluster())

    def _cluster_clock(self, frame: Frame) -> None:
        asked = admin.ClusterClock.parse(frame)
        clock = self._broker.clock
        status = clock.accept() if asked.action == "accept" else clock.status()
        fields = ("guarded_ms", "wall_ms", "drift_ms", "alarm", "reason", "median_ms", "peers")
        self._reply(frame[1], {field: getattr(status, field) for field in fields})

    def _cluster_init(self, frame: Frame) -> None:
        admin.ClusterInit.parse(frame)
        self._start(frame, self._info.init)

    def _node_change(self, frame: Frame) -> None:
        asked = admin.NodeChange.parse(frame)
        administration = self._broker.administration
        if asked.action == admin.REMOVE:
            self._start(frame, lambda: administration.remove(asked.node))
        else:
            self._start(frame, lambda: administration.drain(asked.node, undo=asked.action == admin.UNDRAIN))

    def _transfer(self, frame: Frame) -> None:
        asked = admin.Transfer.parse(frame)
        self._start(frame, lambda: self._broker.administration.transfer(*asked))


def _sent(pieces: Sequence[delivery.Piece]) -> list[Piece]:
    return [Piece(p.offsets, p.ids, p.created_ms, p.live, p.batch) for p in pieces]
