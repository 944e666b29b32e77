"""From a model's URI to a model that runs on pages: sources, support, attention, the equality gate, loading."""
