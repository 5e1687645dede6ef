"""The demo, `python -m demo`: three real nodes that find each other, thousands of reminders, and two workers. One
leader is killed, and a fourth node takes its share of the partitions. A verdict ends the demo."""
