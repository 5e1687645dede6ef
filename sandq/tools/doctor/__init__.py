"""`sandq doctor`: check whether a node can run on this machine."""
