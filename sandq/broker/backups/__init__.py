"""Read partitions for backups, and restore them."""
