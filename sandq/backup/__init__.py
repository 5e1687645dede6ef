"""Backups of a cluster: created while it runs, verified without it, restored into it or into another cluster.

    location = open_location("/backups/orders")
    manifest = await create_backup(client, location)
    await verify_backup(location, manifest.backup_id)
    await restore_backup(client, location, manifest.backup_id, topics=["orders"], names={"orders": "orders-again"})

    manifest = await create_backup(client, location, follow=True)  # then increments with the later commits
    increment = await BackupFollower(client, location, manifest).step()
    await restore_backup(client, location, manifest.backup_id, at_ms=increment.reach_ms, prefix="then-")

`sandctl backup` does the same. docs/backup.md describes the content of a backup.
"""

from __future__ import annotations

from sandq.backup.chains import ChainKeeper, create_increment, last_of_cluster
from sandq.backup.create import create_backup
from sandq.backup.errors import DamagedBackup, NoBackup, WrongKey
from sandq.backup.follow import BackupFollower, Increment
from sandq.backup.keys import BackupKey
from sandq.backup.listing import Listed, delete_backup, list_backups
from sandq.backup.locations import open_location
from sandq.backup.manifest import Manifest
from sandq.backup.restore import Restored, restore_backup
from sandq.backup.schedule import BackupSchedule
from sandq.backup.standing import Standing, StatusFile
from sandq.backup.verify import verify_backup
from sandq.backup.verify_chain import VerifiedChain, verify_chain
from sandq.backup.work import Progress

__all__ = [
    "BackupFollower",
    "BackupKey",
    "BackupSchedule",
    "ChainKeeper",
    "DamagedBackup",
    "Increment",
    "Listed",
    "Manifest",
    "NoBackup",
    "Progress",
    "Restored",
    "Standing",
    "StatusFile",
    "VerifiedChain",
    "WrongKey",
    "create_backup",
    "create_increment",
    "delete_backup",
    "last_of_cluster",
    "list_backups",
    "open_location",
    "restore_backup",
    "verify_backup",
    "verify_chain",
]
