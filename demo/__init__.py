"""The demo: three real nodes, thousands of reminders, two workers, a leader killed half way, and a verdict.
`python -m demo`."""
