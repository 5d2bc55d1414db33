"""Plugins that are right and odd, for the reasons in their docstrings."""
