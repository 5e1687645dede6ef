"""The commands of sandctl, a module for each group."""
