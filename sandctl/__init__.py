"""The command line client of sandq, for people and scripts."""
