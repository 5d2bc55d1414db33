"""Trains the model behind ``embedded:demo``: data, tokenizer, training, export, figures."""
