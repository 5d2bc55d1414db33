"""Routers: which replica serves a request, one rule in a file."""
