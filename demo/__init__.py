"""The demo: three real nodes that find each other, thousands of reminders, two workers, a leader killed on the way, a
fourth node that takes its share, and a verdict. `python -m demo`."""
