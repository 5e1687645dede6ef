"""Create, send and receive snapshots of groups."""
