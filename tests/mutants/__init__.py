"""Plugins that are wrong, and plugins that are right and odd: what the conformance kit is held to.

Each module of `broken` and `odd` holds those of one kind and is a local plugin (`plugins.load`).
The docstring of a class says what is wrong with it, or why it is right. The command

    python -m tests.mutants [KIND]

prints the score.
"""
