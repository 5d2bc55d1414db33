"""One process per rank: typed messages between them and the engine, and who ends whom."""
