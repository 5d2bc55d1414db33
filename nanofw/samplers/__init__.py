"""Samplers: how a token is drawn from logits."""
