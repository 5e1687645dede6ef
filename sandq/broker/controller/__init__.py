"""Change the metadata of the cluster, act on changes, and place replicas."""
