"""The machine: requests, plans, the scheduler and the engine. numpy only, no torch."""
