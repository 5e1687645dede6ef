"""The log as consumers read it: look-aheads of its rows, overlays, and messages cut out of batches."""
