"""Facts in a small language model, and ways to edit them."""
