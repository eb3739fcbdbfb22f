"""The tail-average margin: listwise retrieval by linear memories, and its theory."""
