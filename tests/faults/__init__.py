"""Every fault that a plugin can have: the error names it, and every request gets its line."""
