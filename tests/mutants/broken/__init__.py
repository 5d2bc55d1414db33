"""Plugins that are wrong as their docstrings say."""
