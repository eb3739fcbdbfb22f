"""Linear memories: what one matrix can store."""
