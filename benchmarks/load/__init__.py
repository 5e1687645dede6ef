"""Loads: processes of their own, so that what a client takes is not taken for the node's.

`python -m benchmarks.load PARENT_PID` reads what to do from its standard input, a line of JSON: `do` names the work and
the rest are its arguments. It prepares everything, prints a line of JSON, waits for `go MOMENT`, runs, and prints what
it found out in another line.
"""
