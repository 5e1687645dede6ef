"""Consistent reads of the groups that this node leads, and commands to several groups at once."""
