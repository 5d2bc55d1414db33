"""Executor `ray`: the ranks of a run as actors that Ray places. Imported when it is chosen."""
