"""The configuration: schema, loading, presets."""
