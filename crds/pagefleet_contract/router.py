"""The router's settings: one frozen model, which the operator writes to a file and the router reads."""

from pydantic import Field

from pagefleet_contract.engine import Section, ServedName, ServingSettings
from pagefleet_contract.names import HTTP_PORT


class RouterConfig(Section):
    """Everything that the front door of one service needs to know."""

    service_name: str = Field(min_length=1, max_length=63)
    """Name of the InferenceService; its engine pods are found by label."""

    namespace: str = Field(min_length=1, max_length=63)
    """Namespace of the InferenceService and of its pods."""

    served_name: ServedName
    """The name that clients send as `model`. Only asked where no replica can answer: a known model is worth
    another try, an unknown one isn't."""

    engine_port: int = Field(default=HTTP_PORT, ge=1, le=65535)
    """Port on which the replicas listen."""

    max_retries: int = Field(default=2, ge=0, le=10)
    """How many other replicas are tried when one can't be reached, ends or refuses before its answer has begun."""

    connect_timeout_seconds: int = Field(default=2, ge=1, le=60)
    """Longest time that connecting to a replica may take, in seconds; then another one is tried."""

    client_timeout_seconds: int = Field(default=30, ge=1, le=3600)
    """Longest time that a client may take to send a request's head, in seconds, and its body beside a second for each
    4 KiB of it; then it is answered with 408."""

    max_body_bytes: int = Field(default=ServingSettings().max_body_bytes, ge=1024, le=2**30)
    """Largest request body, in bytes; a larger one is answered with 413."""

    max_buffered_bytes: int = Field(default=128 * 2**20, ge=2**20, le=2**40)
    """Bytes of all request bodies together that are kept for sending them again; a request beyond that is answered
    with 503."""

    drain_timeout_seconds: int = Field(default=600, ge=0, le=86_400)
    """Longest time that SIGTERM waits for requests in flight, in seconds; then they end with an error event."""
