"""The commands of sandctl, one module per group."""
