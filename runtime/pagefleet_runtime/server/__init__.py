"""The OpenAI HTTP API: from the request's bytes to the engine's token ids, and from token ids to the answer's bytes.

It knows neither the model nor the scheduler: it asks `text` for words and `engine_client` for tokens.
"""
