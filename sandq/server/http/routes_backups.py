"""Routes of backups and restores."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request

from sandq.server.http import bodies, responses
from sandq.server.http.gateway import Found, gateway_of, run_waiting
from sandq.server.http.strict import router_of

router = router_of("backups")
BackupId = Annotated[str, Path(description="The backup's name.")]


@router.post(
    "/backups",
    operation_id="createBackup",
    status_code=202,
    response_model=responses.BackupProgress,
    summary="Start a backup",
)
async def create_backup(request: Request, body: bodies.BackupIn | None = None) -> Found:
    """Stores it at the location in the configuration. 409 if there is none, or while a backup is running here. `GET
    /backups` shows the progress."""
    return await gateway_of(request).backups.begin(None if body is None else body.topics)


@router.get("/backups", operation_id="listBackups", response_model=responses.Backups, summary="List all backups")
async def list_backups(request: Request) -> Found:
    """Oldest first, including unusable ones with the reason, and the progress of the backup that is running here."""
    return await gateway_of(request).backups.list()


@router.post(
    "/backups/{backup}/verify",
    operation_id="verifyBackup",
    response_model=responses.Backup,
    summary="Verify a backup by reading all of it",
)
async def verify_backup(request: Request, backup: BackupId) -> Found:
    """400 if it is damaged: the error names the file and the position. Takes as long as reading it."""
    backups = gateway_of(request).backups
    return await run_waiting(request, lambda: backups.verify(backup))


@router.post(
    "/backups/{backup}/restore",
    operation_id="restoreBackup",
    status_code=202,
    response_model=responses.BackupProgress,
    summary="Start to restore a backup",
)
async def restore_backup(request: Request, backup: BackupId, body: bodies.RestoreIn | None = None) -> Found:
    """Creates its topics, under names that are not in use; they stay closed until all are complete. 409 while a restore
    is running here, or if the backup has increments and `base` is not set: use `sandctl backup restore` for a point in
    time. `GET /backups` shows the progress and the outcome."""
    wanted = bodies.RestoreIn() if body is None else body
    return await gateway_of(request).backups.begin_restore(
        backup,
        topics=wanted.topics,
        names=wanted.names,
        prefix=wanted.prefix,
        base=wanted.base,
        resume_groups=wanted.resume_groups,
    )
