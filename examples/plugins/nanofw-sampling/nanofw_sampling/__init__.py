"""A published sampler and a published logits processor for nanofw."""
