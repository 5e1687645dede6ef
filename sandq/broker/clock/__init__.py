"""The guarded clock of a node, and the checks of its peers' clocks."""
