"""The contracts that plugins implement, one file per kind."""
