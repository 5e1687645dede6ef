"""Records of messages in a group: leases, waiting entries, claims, lives, gaps. Also the metrics that count them."""
