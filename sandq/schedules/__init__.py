"""When recurring messages recur: expressions, intervals, time zones. Pure, no clock (floor F1)."""
