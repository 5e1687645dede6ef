"""Read the state of groups consistently, and send commands to several groups at once."""
