"""Backups of a cluster: created while it runs, verified without it, restored into it or into another cluster.

    place = place_of("/backups/orders")
    manifest = await create_backup(client, place)
    await verify_backup(place, manifest.backup_id)
    await restore_backup(client, place, manifest.backup_id, topics=["orders"], names={"orders": "orders-again"})

    manifest = await create_backup(client, place, follow=True)  # then increments with the later commits
    increment = await BackupFollower(client, place, manifest).step()
    await restore_backup(client, place, manifest.backup_id, at_ms=increment.reach_ms, prefix="then-")

`sandctl backup` does the same. docs/backup.md describes the content of a backup.
"""

from __future__ import annotations

from sandq.backup.chains import ChainKeeper, create_increment, last_of_cluster
from sandq.backup.create import create_backup
from sandq.backup.errors import DamagedBackup, NoBackup, WrongKey
from sandq.backup.follow import BackupFollower, Increment
from sandq.backup.keys import BackupKey
from sandq.backup.listing import Listed, delete_backup, list_backups
from sandq.backup.manifest import Manifest
from sandq.backup.places import place_of
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
    "place_of",
    "restore_backup",
    "verify_backup",
    "verify_chain",
]
