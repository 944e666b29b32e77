"""Asks a path again and again as a kubelet does, on a connection of its own each time, and says how long it took.

Run as a program of its own, so that a busy test doesn't slow it: probes.py HOST PORT PATH SECONDS_BETWEEN TIMEOUT.
It ends at the end of its input and writes one line a probe: status, seconds.
"""

import http.client
import select
import sys
import time


def probe(host: str, port: int, path: str, timeout: float) -> tuple[int, float]:
    """Return the status, 0 where there was none in time, and how long it took."""
    started = time.monotonic()
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - started
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - started
    finally:
        connection.close()


def main(host: str, port: str, path: str, between: str, timeout: str) -> None:
    ended = False
    while not ended:
        status, seconds = probe(host, int(port), path, float(timeout))
        print(status, round(seconds, 4), flush=True)
        ended = bool(select.select([sys.stdin], [], [], float(between))[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
