"""What a partition keeps of a message in a group: leases, waiting entries, claims, lives; and numbers of these."""
