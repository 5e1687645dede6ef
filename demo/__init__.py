"""The demo: a real node, thousands of reminders, two workers, a kill -9 half way, and a verdict. `python -m demo`."""
