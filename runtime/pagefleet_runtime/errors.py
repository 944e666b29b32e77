"""The runtime's errors, and how each one is answered.

RuntimeFault
├── ModelRefused      the model can't be served; start-up ends with the message
└── RequestRefused    one request can't be served; it is answered with a status and an OpenAI error object
"""

from pagefleet_contract.openai_error import Refusal


class RuntimeFault(Exception):
    """Base of what a user, a model or a client can cause. Anything else is a bug of ours."""


class ModelRefused(RuntimeFault):
    """The model can't be served. The message names what was found, what is supported and what to do."""


class RequestRefused(RuntimeFault):
    """One request is refused; `refusal` holds the HTTP status and the fields of OpenAI's error object."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> RequestRefused:
    """Return the error for a request that is wrong in itself (400)."""
    return RequestRefused(Refusal(400, code, message, param))
