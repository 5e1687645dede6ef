"""The demo, `python -m demo`: three real nodes that find each other, thousands of reminders, two workers, the kill of a
leader, a fourth node that takes its share, and a verdict."""
