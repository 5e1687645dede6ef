"""Reads the log for consumers: look-aheads of its rows, overlays, and messages that are cut out of batches."""
