"""`nanofw serve`: an OpenAI server over `AsyncLLM`, in which the policy is a plugin."""
