"""Split lease tokens into their parts."""

from __future__ import annotations

from sandq.model.offsets import TOKEN_PLACE_MAX


def token_parts(token: int) -> tuple[int, int]:
    """Return `(Raft index, position)` of a lease token."""
    return token >> 16, token & TOKEN_PLACE_MAX
