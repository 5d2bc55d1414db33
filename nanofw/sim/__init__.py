"""The simulated executor: plans answered after a modelled time. No torch, no weights."""
