"""Create a first token for a cluster without identities, in a file of a node's data directory.

Anyone who can read this directory can use the token, and is thus an administrator of the cluster.

The metadata leader creates the token if there are no identities. This is the case in a new cluster, in a cluster that
enables authentication, and after the last identity was deleted.
"""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Final

import trio

from sandq.broker.access.authenticator import OFF
from sandq.broker.access.identities import Identities
from sandq.broker.event_loop import Signal
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.model.caller import NODE
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.model.principals import TOKEN, TOKEN_BYTES, principal_of, token_hash, token_text
from sandq.protocol.requests_access import IdentityPut
from sandq.storage.files import Files

log = get_logger("sandq.access")

NAME: Final = "admin.token"
"""Name of the file in the data directory."""
PENDING: Final = f"{NAME}.new"
"""Name of the file until the cluster has stored the token. So a token in the file `NAME` is always usable."""
PRINCIPAL: Final = principal_of(TOKEN, "admin")
RETRY_S: Final = 1.0
"""Pause in s after a failed attempt."""


async def give_first_token(
    mode: int, metadata: RaftGroup, identities: Identities, runner: Runner, files: Files, data_dir: Path
) -> None:
    """While this node leads the metadata, create a first token whenever there are no identities. Run until cancelled.

    `mode`: mode of the authenticator; if it is OFF, return at once. `data_dir`: directory whose path the log line
    shows."""
    if mode == OFF:
        return
    changed = Signal()
    metadata.listen(on_status=changed.set, on_ready=lambda ready: changed.set())
    # Use the same token until the outcome is known, even after a restart. If a reply was lost, the cluster may have
    # stored the token.
    text = await runner.on_maintenance(partial(_pending, files))
    while True:
        view = metadata.status
        try:
            if metadata.ready and not view.identities:
                text = text or token_text(secrets.token_bytes(TOKEN_BYTES))
                # Write the file before the identity is created. Otherwise a crash could lose the token, and its
                # identity would prevent a new first token.
                await runner.on_maintenance(partial(files.replace, PENDING, f"{text}\n".encode()))
                fields = {"grants": ["admin"], "secret_hash": token_hash(text), "note": "made at the first start"}
                await identities.put(IdentityPut(PRINCIPAL, True, fields), NODE)
            elif text and view.identities:
                record = view.identities.get(PRINCIPAL)
                if record is not None and record.secret_hash == token_hash(text):
                    await runner.on_maintenance(partial(files.replace, NAME, f"{text}\n".encode()))
                    log.warning(
                        "this cluster had no identities: a first token, with all rights, is in a file; create your own "
                        "tokens with it, and delete both",
                        file=str(data_dir / NAME),
                        identity=PRINCIPAL,
                    )
                text = ""
                await runner.on_maintenance(partial(files.remove, PENDING))
            else:
                await changed.wait()
        except SandqError as error:
            log.warning("no first token could be created; trying again", error=error.message)
            await trio.sleep(RETRY_S)


def _pending(files: Files) -> str:
    """Return the pending token; empty if there is none. The cluster may have stored this token already."""
    return files.read(PENDING).decode().strip() if files.exists(PENDING) else ""
