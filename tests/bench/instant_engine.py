"""`python -m tests.bench.instant_engine`: an engine that costs nothing, to measure what stands in front of it.

A stream has EVENTS events, one each INTERVAL seconds, and each says when it was written (CLOCK_MONOTONIC, in ns).
"""

import asyncio
import time

import uvicorn
from starlette.types import Receive, Scope, Send

from pagefleet_contract.listening import base_url, bound_socket

EVENTS = 100
INTERVAL_SECONDS = 0.02
ANSWER = b'{"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":"' + b"x" * 400 + b'"}]}'
_EVENT = (
    b'data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1764400000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"written":%d}\n\n'
)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    if scope["path"] != "/v1/chat/completions":
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(EVENTS):
        await send({"type": "http.response.body", "body": _EVENT % time.monotonic_ns(), "more_body": True})
        await asyncio.sleep(INTERVAL_SECONDS)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


if __name__ == "__main__":
    listener = bound_socket("127.0.0.1", 0)
    print(f"listening on {base_url(listener)}", flush=True)
    config = uvicorn.Config(
        app, http="httptools", loop="uvloop", lifespan="off", log_level="warning", access_log=False, backlog=2048
    )
    uvicorn.Server(config).run(sockets=[listener])
