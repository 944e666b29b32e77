"""The text edge: token ids to text and back. Pure values and small state machines; it knows no HTTP and no engine."""
