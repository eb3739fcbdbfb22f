"""A one-layer Transformer that looks up facts in a frozen MLP."""
