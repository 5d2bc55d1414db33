"""Executor `torch`: plans become forward passes on a device."""
