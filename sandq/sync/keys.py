"""The keys of a compacted topic, blocking.

A watch takes all arrived changes together, so that a thread waits for the event loop only once for many changes.
"""

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
    """The keys of one compacted topic: like `sandq.Keys`, blocking. May be used by any number of threads."""

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
        """Set many keys in batches; return their versions, in the given order.

        `items`: a mapping of keys to values, or an iterable of such pairs. A value of None deletes the key. Writes to
        the same key are stored in this order. An invalid item raises an error immediately, with its position in the
        text. The items before it are written nevertheless.
        """
        # Make the list in this thread, so that the caller's iterable does not run in the event loop.
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
        """Watch the writes to one key, to the keys with a prefix, or to all keys.

        Use it as `with kv.watch(prefix="user/") as watch: for change in watch:`. The arguments are those of
        `sandq.Keys.watch`.
        """
        inner = self._portal.do(lambda: self._inner.watch(key, prefix=prefix, start=start, latest=latest))
        return Watch(inner, self._portal, self._blocks)


class Watch(BlockWrapper[AsyncWatch]):
    """Changes of keys, like `sandq.Watch`. Created by `kv.watch`; a context manager and iterator for one thread."""

    def __init__(self, inner: AsyncWatch, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal, blocks)
        self._answers: deque[Answer] = deque()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def position(self) -> dict[int, str]:
        """By partition: position up to which changes were returned. Can be saved as JSON.

        If it is the `start` of another watch, that watch continues from there.
        """
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
        """Return the next change; wait for it."""
        self._portal.check()
        answers = self._answers
        if not answers:
            self._portal.call(self._fill)
        change = answers[0].take()
        if answers[0].is_through:
            answers.popleft()
        return change

    async def _fill(self) -> None:
        # Runs in the event loop, because the caller's thread may be interrupted: so no arrived change is lost.
        self._answers.extend(await self._inner.next_answers())
