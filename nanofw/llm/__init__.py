"""Models in text: `nanofw.LLM`, and the session that `nanofw run` is built on."""
