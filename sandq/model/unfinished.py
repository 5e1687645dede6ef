"""The error that refuses to delete a group with unfinished messages, for the broker and the client."""

from __future__ import annotations

from sandq.model.errors import Conflict


def unfinished_conflict(group: str, count: int) -> Conflict:
    """Return the error that refuses to delete a group with this number of unfinished messages."""
    messages = "1 message" if count == 1 else f"{count} messages"
    return Conflict(
        f"group {group!r} has yet to finish {messages} (leased, retrying, or blocked by their keys), which would be "
        "lost; let its consumers finish, or delete the group with force",
        group=group,
        unfinished=count,
    )
