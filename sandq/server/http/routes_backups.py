"""Backups: begun, listed, verified, restored."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request

from sandq.server.http import answers, bodies
from sandq.server.http.gateway import Found, gateway_of, run_waiting
from sandq.server.http.strict import router_of

router = router_of("backups")
BackupId = Annotated[str, Path(description="The backup's name.")]


@router.post(
    "/backups",
    operation_id="createBackup",
    status_code=202,
    response_model=answers.BackupProgress,
    summary="Begin a backup",
)
async def create_backup(request: Request, body: bodies.BackupIn | None = None) -> Found:
    """It goes to where the configuration says. 409 where that says nothing, and while one is being made here; how far
    it is `GET /backups` tells."""
    return await gateway_of(request).backups.begin(None if body is None else body.topics)


@router.get("/backups", operation_id="listBackups", response_model=answers.Backups, summary="All backups")
async def list_backups(request: Request) -> Found:
    """The oldest first, also those that cannot be used, and why; and how far the one is that is being made here."""
    return await gateway_of(request).backups.list()


@router.post(
    "/backups/{backup}/verify",
    operation_id="verifyBackup",
    response_model=answers.Backup,
    summary="Read a backup as a whole",
)
async def verify_backup(request: Request, backup: BackupId) -> Found:
    """400 when it is damaged: the error names the file and the byte. It takes as long as it takes to read."""
    backups = gateway_of(request).backups
    return await run_waiting(request, lambda: backups.verify(backup))


@router.post(
    "/backups/{backup}/restore",
    operation_id="restoreBackup",
    status_code=202,
    response_model=answers.BackupProgress,
    summary="Begin to restore a backup",
)
async def restore_backup(request: Request, backup: BackupId, body: bodies.RestoreIn | None = None) -> Found:
    """Makes its topics again: under names that no topic has, shut until all of them are there. 409 while something is
    restored here, and for a backup with increments without `base`: a point in time is for `sandctl backup restore`. How
    far it is, and what became of it, `GET /backups` tells."""
    wanted = bodies.RestoreIn() if body is None else body
    return await gateway_of(request).backups.begin_restore(
        backup,
        topics=wanted.topics,
        names=wanted.names,
        prefix=wanted.prefix,
        base=wanted.base,
        resume_groups=wanted.resume_groups,
    )
