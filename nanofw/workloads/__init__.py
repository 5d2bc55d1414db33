"""Workloads: where requests come from, and when. No torch."""
