"""One program that answers for the addresses of all engine pods: `python -m tests.bench.many_replicas FIRST COUNT`.

It says `ready` when it listens on all of them. Each answers with a state page of a ready replica.
"""

import asyncio
import ipaddress
import json
import sys

from pagefleet_contract.listening import raise_file_limit
from pagefleet_contract.names import HTTP_PORT
from tests.operator.replica_server import STATE_PAGE

# What the bench's services ask for is in force.
_PAGE = STATE_PAGE | {
    "policy": {"maxSequences": 256, "maxQueue": 512, "queueTimeoutSeconds": 60, "watermarkPercent": 1}
}
_BODY = json.dumps(_PAGE).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(_ANSWER)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def serve(first: str, count: int) -> None:
    addresses = [str(ipaddress.ip_address(first) + index) for index in range(count)]
    await asyncio.start_server(_answer, addresses, HTTP_PORT)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    raise_file_limit()
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
