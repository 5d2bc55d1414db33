"""Scheduling policies, one per file. No torch."""
