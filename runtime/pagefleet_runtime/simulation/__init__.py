"""A model that isn't there: its shape, how long its steps take, and made-up text. No torch, no weights."""
