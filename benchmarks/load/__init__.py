"""Loads in processes of their own, so that the client's CPU time is not counted for the node.

`python -m benchmarks.load PARENT_PID` reads a line of JSON from standard input: `do` names the work, the rest are its
arguments. The process prepares everything, prints a line of JSON, waits for `go TIME`, runs, and prints its result as
another line.
"""
