"""Restores a partition from the rows of a backup."""
