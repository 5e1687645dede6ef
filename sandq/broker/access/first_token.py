"""Give a cluster that knows nobody a first token: whoever may read the data directory of a node is its administrator.

It is made by the node that leads the metadata while there are no identities at all: of a new cluster, of one in which
authentication is turned on, and of one whose last identity was deleted.
"""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from sandq.broker.access.authenticator import OFF
from sandq.broker.access.identities import Identities
from sandq.broker.event_loop import Signal
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.model.caller import NODE
from sandq.model.errors import SandqError
from sandq.model.principals import TOKEN, TOKEN_BYTES, principal_of, token_hash, token_text
from sandq.protocol.requests_access import IdentityPut
from sandq.storage.files import Files

log = structlog.get_logger("sandq.access")

NAME: Final = "admin.token"
"""Of the file, in the data directory."""
PENDING: Final = f"{NAME}.new"
"""Its name until the cluster knows it: who finds the file can use it."""
PRINCIPAL: Final = principal_of(TOKEN, "admin")
AGAIN_S: Final = 1.0


async def give_first_token(
    mode: int, metadata: RaftGroup, identities: Identities, runner: Runner, files: Files, data_dir: Path
) -> None:
    """Make one whenever there is none. `mode`: the authenticator's; `data_dir`: for the log, which says where it is."""
    if mode == OFF:
        return
    changed = Signal()
    metadata.listen(on_status=changed.set, on_ready=lambda ready: changed.set())
    # The same one until it is known what became of it, across restarts, too: it may have been made all the same.
    text = await runner.on_maintenance(partial(_pending, files))
    while True:
        view = metadata.status
        try:
            if metadata.ready and not view.identities:
                text = text or token_text(secrets.token_bytes(TOKEN_BYTES))
                # The file first: a token that nobody has would keep another one from being made.
                await runner.on_maintenance(partial(files.replace, PENDING, f"{text}\n".encode()))
                fields = {"grants": ["admin"], "secret_hash": token_hash(text), "note": "made at the first start"}
                await identities.put(IdentityPut(PRINCIPAL, True, fields), NODE)
            elif text and view.identities:
                record = view.identities.get(PRINCIPAL)
                if record is not None and record.secret_hash == token_hash(text):
                    await runner.on_maintenance(partial(files.replace, NAME, f"{text}\n".encode()))
                    log.warning(
                        "this cluster knew nobody: a first token, with all rights, is in a file; make tokens of your "
                        "own with it, and delete both",
                        file=str(data_dir / NAME),
                        identity=PRINCIPAL,
                    )
                text = ""
                await runner.on_maintenance(partial(files.remove, PENDING))
            else:
                await changed.wait()
        except SandqError as error:
            log.warning("no first token could be made; it is tried again", error=error.message)
            await trio.sleep(AGAIN_S)


def _pending(files: Files) -> str:
    """The one of which it is not known what became; empty: there is none."""
    return files.read(PENDING).decode().strip() if files.exists(PENDING) else ""
