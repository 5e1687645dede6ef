"""Reminders at the end of a trial that a payment cancels."""
