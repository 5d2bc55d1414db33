"""Measuring a run: the arrivals that drive it, times of tokens, latencies, host phases, metrics."""
