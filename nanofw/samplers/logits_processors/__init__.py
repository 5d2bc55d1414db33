"""Logits processors: changes of the logits before a token is drawn."""
