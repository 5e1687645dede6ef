"""Watch the health of this node and its replicas, and the health reports of other nodes."""
