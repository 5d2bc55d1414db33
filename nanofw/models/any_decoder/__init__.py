"""Model `transformers`: decoders of any family, computed by transformers around paged attention."""
