"""Right plugins, from which the others are made."""
