"""`sandq doctor`: whether a node can run here."""
