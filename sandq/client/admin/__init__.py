"""Administration of topics, groups and the cluster."""
