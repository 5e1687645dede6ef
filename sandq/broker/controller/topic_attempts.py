"""Attempts to create topics on first use.

At most one attempt per name is in progress. The number of attempts is limited to the number of topics that may still be
created. So a client that requests very many names gets an error at once, and does not delay other changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sandq.broker.replication.replica import MetadataView
from sandq.model.errors import Overloaded, SandqError
from sandq.model.names import AUTO_CREATED


class _Attempt:
    """The attempt to create one topic."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: SandqError | None = None


class TopicAttempts:
    """The attempts in progress on the metadata leader."""

    def __init__(self, most: int) -> None:
        """`most`: maximum number of topics that are created on first use."""
        self._most = most
        self._attempts: dict[str, _Attempt] = {}
        self._counted = (-1, 0)
        """(index of the metadata at the last count, number of topics that were counted)."""

    def made(self, view: MetadataView) -> int:
        """Return the number of existing topics that were created on first use."""
        if self._counted[0] != view.applied_index:
            count = sum([AUTO_CREATED in topic.first_settings for topic in view.topics.values()])
            self._counted = view.applied_index, count
        return self._counted[1]

    async def until_ended(self, name: str) -> bool:
        """If an attempt to create this topic is in progress, wait for its end, and return True. Otherwise return False.

        If the attempt failed, raise its error in every waiting caller. Otherwise one caller would start the next
        attempt, and the others would wait as long again."""
        attempt = self._attempts.get(name)
        if attempt is None:
            return False
        await attempt.ended.wait()
        if (error := attempt.error) is not None:
            raise error.again()
        return True

    @contextmanager
    def attempt(self, name: str, view: MetadataView) -> Iterator[None]:
        """Register an attempt for the duration of the block.

        Raise Overloaded if the topics created on first use and the attempts in progress together reach the maximum."""
        if self.made(view) + len(self._attempts) >= self._most:
            raise Overloaded(
                f"topic {name!r} does not exist, and {len(self._attempts)} others are being created, the maximum "
                "(limits.auto_created_topics): ask again in a moment",
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
