"""The keys of a compacted topic, blocking. A watch's changes are taken from what has come: a thread waits for the event
loop once for all of it, not for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType

from sandq.client.arguments import suggesting
from sandq.client.kv.entries import Change
from sandq.client.kv.keys import Keys as AsyncKeys
from sandq.client.kv.keys import Pairs
from sandq.client.kv.watch import Answer
from sandq.client.kv.watch import Watch as AsyncWatch
from sandq.client.kv.watch_positions import NOW, WatchStart
from sandq.client.portal import Portal
from sandq.client.producer.validation import Value
from sandq.model.times import Duration
from sandq.sync.wrappers import Blocks, BlockWrapper, Wrapper, blocking, iterating


@suggesting
class Keys(Wrapper[AsyncKeys]):
    """The keys of one compacted topic: as `sandq.Keys`, blocking. Any number of threads may use it."""

    def __init__(self, inner: AsyncKeys, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal)
        self._blocks = blocks

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    put = blocking(AsyncKeys.put)

    def put_many(
        self, items: Pairs | Iterable[tuple[Value, Value | None]], *, timeout: Duration | None = None
    ) -> list[str]:
        """`put` many, in batches: a mapping of keys to values, or an iterable of such pairs. A value of None deletes.
        Their versions, in this order; writes to one key happen in it.

        A mistake in one raises at once, naming its place; those before it are written all the same.
        """
        # Listed here: what the caller's iterable does is not to be done in the event loop.
        listed = list(items.items() if isinstance(items, Mapping) else items)
        return self._portal.call(lambda: self._inner.put_many(listed, timeout=timeout))

    delete = blocking(AsyncKeys.delete)
    cas = blocking(AsyncKeys.cas)
    get = blocking(AsyncKeys.get)
    get_many = blocking(AsyncKeys.get_many)
    scan = iterating(AsyncKeys.scan)

    def watch(
        self,
        key: Value | None = None,
        *,
        prefix: Value | None = None,
        start: WatchStart = NOW,
        latest: bool = False,
    ) -> Watch:
        """`with kv.watch(prefix="user/") as watch: for change in watch:` what is written from then on, of one key, of
        those with a prefix, or of all. The arguments are those of `sandq.Keys.watch`."""
        inner = self._portal.do(lambda: self._inner.watch(key, prefix=prefix, start=start, latest=latest))
        return Watch(inner, self._portal, self._blocks)


class Watch(BlockWrapper[AsyncWatch]):
    """Changes of keys; made by `kv.watch`, a context manager and an iterator, for one thread. Otherwise as
    `sandq.Watch`."""

    def __init__(self, inner: AsyncWatch, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal, blocks)
        self._answers: deque[Answer] = deque()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def position(self) -> dict[int, str]:
        """How far changes were handed out, by partition: the `start` of a watch that goes on from there. May be saved
        as JSON."""
        self._portal.check()
        return self._inner.position

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._answers.clear()
        super().__exit__(kind, error, traceback)

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        """The next change; waits for it."""
        self._portal.check()
        answers = self._answers
        if not answers:
            self._portal.call(self._fill)
        change = answers[0].take()
        if answers[0].is_through:
            answers.popleft()
        return change

    async def _fill(self) -> None:
        # Here and not in the thread, which may be interrupted: nothing that has come is lost on the way.
        self._answers.extend(await self._inner.next_answers())
