"""Topics that are made because somebody uses them: one attempt of a name at a time, and no more names at a time than
may be made. So who asks for names without end waits for nothing, and holds nobody up who changes something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sandq.broker.replication.replica import MetadataView
from sandq.model.errors import Overloaded, SandqError
from sandq.model.names import AUTO_CREATED


class _Attempt:
    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: SandqError | None = None


class TopicsUnderWay:
    """Of the node that leads the metadata."""

    def __init__(self, most: int) -> None:
        """`most`: topics that may be made so, over all."""
        self._most = most
        self._attempts: dict[str, _Attempt] = {}
        self._counted = (-1, 0)
        """Up to which entry of the metadata, and how many there were."""

    def made(self, view: MetadataView) -> int:
        """How many there are that were made so."""
        if self._counted[0] != view.applied_index:
            count = sum([AUTO_CREATED in topic.first_settings for topic in view.topics.values()])
            self._counted = view.applied_index, count
        return self._counted[1]

    async def until_ended(self, name: str) -> bool:
        """Wait for the attempt to make this one that is under way; False: there is none. Raises what it failed with:
        who waited with it would wait as long again for each of the others otherwise."""
        attempt = self._attempts.get(name)
        if attempt is None:
            return False
        await attempt.ended.wait()
        if (error := attempt.error) is not None:
            raise type(error)(error.message, **error.details)  # one that is raised twice gathers both tracebacks
        return True

    @contextmanager
    def attempt(self, name: str, view: MetadataView) -> Iterator[None]:
        """It is being made inside the block. Raises Overloaded while as many others are as may be made still."""
        if self.made(view) + len(self._attempts) >= self._most:
            raise Overloaded(
                f"topic {name!r} is not there, and {len(self._attempts)} others are being made just now, as many as "
                "may be (limits.auto_created_topics): ask again in a moment",
                topic=name,
            )
        attempt = self._attempts[name] = _Attempt()
        try:
            yield
        except SandqError as error:
            attempt.error = error
            raise
        finally:
            del self._attempts[name]
            attempt.ended.set()
