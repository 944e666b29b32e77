"""What /metrics shows: the last snapshot as gauges and counters, and histograms that the API observes."""


class RequestFigures:
    """The histograms of requests. The API calls the observe methods; the times are in seconds."""

    def observe_first_token(self, seconds: float) -> None:
        """From the request's arrival to its first token (once a request)."""

    def observe_inter_token(self, seconds: float) -> None:
        """Between two tokens of one choice."""

    def observe_queue(self, seconds: float) -> None:
        """From the request's arrival to its first step. The engine client calls it, not the API."""

    def observe_request(self, seconds: float, prompt_tokens: int, generation_tokens: int) -> None:
        """A request that came to its natural end: from arrival to the last token, its prompt's tokens and the sum of
        its choices' tokens (once a request)."""
