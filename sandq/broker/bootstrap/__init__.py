"""Bootstrap of a cluster: elect a founder, found the cluster, join it."""
