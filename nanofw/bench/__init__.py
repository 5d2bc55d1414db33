"""Measuring real runs."""
