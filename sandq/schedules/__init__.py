"""The recurrence of schedules: cron expressions, intervals, time zones. Pure, no clock (floor F1)."""
