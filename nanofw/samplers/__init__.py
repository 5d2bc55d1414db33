"""Samplers: how a token is sampled from logits."""
