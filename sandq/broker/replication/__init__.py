"""Run the Raft groups of this node: write the log, replicate entries, and apply committed entries."""
