"""Records of messages in a group: leases, waiting entries, claims, lives, gaps; and their numbers."""
