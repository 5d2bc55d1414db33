"""Load on an OpenAI endpoint, and what its clients see."""
