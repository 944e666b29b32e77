"""Sends a request to a replica and its answer to the client; tries another replica as long as nothing was answered.

A queue for requests that find no replica has its place where `_forward` finds none.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.openai_error import Refusal
from pagefleet_contract.router import RouterConfig
from pagefleet_router.absence import answer_without_replica
from pagefleet_router.body import Body, ClientLeft, Room
from pagefleet_router.choice import REASON_CONNECT, REASON_RESET, RETRIED_STATUSES, is_avoided, may_retry, retry_reason
from pagefleet_router.exchange import Exchange, WholeAnswer, refusal_answer
from pagefleet_router.fleet import Fleet
from pagefleet_router.headers import authority_of, to_replica
from pagefleet_router.metrics import RouterFigures
from pagefleet_router.refusals import BAD_HOST, BAD_KEY, INTERNAL, Refused, replica_lost, unreachable
from pagefleet_router.relay import PlainRelay, StreamRelay, read_refusal, relay_of
from pagefleet_router.replicas import Replica
from pagefleet_router.upstream import Answer, Lost, Unreachable, Upstream

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A replica that didn't answer: why, and what the client gets if no other does."""

    reason: str
    answer: WholeAnswer


@dataclass(slots=True)
class _Request:
    """What goes to a replica, whichever it is."""

    exchange: Exchange
    path: str
    target: bytes
    client: str
    body: Body
    relay: StreamRelay | PlainRelay | None = field(default=None)

    def head_for(self, authority: bytes) -> bytes:
        exchange = self.exchange
        headers = to_replica(exchange.headers, exchange.request_id, self.client, authority, len(self.body.content))
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        return b"".join([exchange.method.encode(), b" ", self.target, b" HTTP/1.1\r\n", *lines, b"\r\n"])


class Proxy:
    def __init__(self, config: RouterConfig, fleet: Fleet, keys: ApiKeys, figures: RouterFigures) -> None:
        self._config = config
        self._fleet = fleet
        self._keys = keys
        self._figures = figures
        self._room = Room(config.max_buffered_bytes)
        self._upstream = Upstream(config.connect_timeout_seconds)
        self._open: set[Exchange] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self.is_draining = False

    @property
    def num_open(self) -> int:
        """Requests that are being answered."""
        return len(self._open)

    def begin_drain(self) -> None:
        """From now on each answer asks its client to close the connection."""
        self.is_draining = True

    def stop_all(self, refusal: Refusal) -> None:
        """End every request in flight with this refusal."""
        for exchange in self._open:
            exchange.stop(refusal)

    def close(self) -> None:
        self._upstream.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Answer a request to a path that may be forwarded."""
        exchange = Exchange(scope, send, closes=self.is_draining)
        self._open.add(exchange)
        self.idle.clear()
        request = _Request(exchange, path, _target(scope), _client(scope), Body(self._room))
        try:
            await self._answer(request, receive)
        except asyncio.CancelledError:
            if not exchange.is_stopped:
                raise
            _uncancel()
            await self._end_stopped(request)
        except ClientLeft:
            exchange.client_has_left = True
        finally:
            request.body.release()
            self._open.discard(exchange)
            if not self._open:
                self.idle.set()
            self._figures.ended(exchange.status, exchange.first_byte_seconds)

    async def _answer(self, request: _Request, receive: Receive) -> None:
        exchange = request.exchange
        leaving: asyncio.Task[None] | None = None
        try:
            self._check(exchange)
            config = self._config
            await request.body.read(exchange.headers, receive, config.max_body_bytes, config.client_timeout_seconds)
            leaving = asyncio.create_task(_tell_when_left(receive, exchange))
            await self._forward(request)
        except Refused as refused:
            await exchange.answer(refusal_answer(refused.refusal))
        except Exception as error:
            if isinstance(error, ClientLeft):
                raise
            shown = f"{exchange.method} {request.path}"
            logger.exception("request %s (%s) failed by a bug of ours", exchange.request_id.decode(), shown)
            await self._break_off(request, INTERNAL)
        finally:
            if leaving is not None:
                leaving.cancel()

    def _check(self, exchange: Exchange) -> None:
        if sum(name == b"host" for name, _ in exchange.headers) != 1 and exchange.scope["http_version"] != "1.0":
            raise Refused(BAD_HOST)
        if self._keys.required and self._keys.tenant_of(_authorization(exchange)) is None:
            raise Refused(BAD_KEY)

    async def _forward(self, request: _Request) -> None:
        tried: set[str] = set()
        reasons: list[str] = []
        failure: _Failure | None = None
        while (replica := self._fleet.pick(tried)) is not None:
            if failure is not None:
                self._figures.retried(failure.reason)
            tried.add(replica.uid)
            with self._fleet.request_on(replica):
                failure = await self._ask(request, replica)
            if failure is None:
                return
            if is_avoided(failure.reason):
                self._fleet.failed(replica)
            reasons.append(failure.reason)
            logger.info("request %s: %s didn't take it (%s)", _id(request), replica.name, failure.reason)
            if not may_retry(reasons, self._config.max_retries):
                break
        if failure is None:
            answer = answer_without_replica(
                request.exchange.method,
                request.path,
                request.body.content,
                self._config,
                self._fleet.count(),
            )
        else:
            answer = failure.answer
        await request.exchange.answer(answer)

    async def _ask(self, request: _Request, replica: Replica) -> _Failure | None:
        """Send the request to a replica and its answer to the client. Return None, or why another one may be asked."""
        address = (replica.address, self._config.engine_port)
        head, has_no_body = request.head_for(authority_of(*address)), request.exchange.method == "HEAD"
        try:
            answer = await self._upstream.send(address, head, request.body.content, has_no_body)
        except Unreachable as error:
            return _Failure(REASON_CONNECT, refusal_answer(unreachable(f"{replica.name}: {error}")))
        except Lost as error:
            return _Failure(REASON_RESET, refusal_answer(replica_lost(f"{replica.name}: {error}")))
        try:
            return await self._take(request, replica, answer)
        finally:
            answer.close()

    async def _take(self, request: _Request, replica: Replica, answer: Answer) -> _Failure | None:
        head = answer.head
        if head.status in RETRIED_STATUSES:
            try:
                whole, code = await read_refusal(answer)
            except Lost as error:
                return _Failure(REASON_RESET, refusal_answer(replica_lost(f"{replica.name}: {error}")))
            reason = retry_reason(head.status, code)
            if reason is not None:
                return _Failure(reason, whole)
            await request.exchange.answer(whole)
            return None
        self._fleet.answered(replica)
        request.body.release()
        request.relay = relay_of(request.path, answer, request.exchange)
        try:
            await request.relay.run()
        except Lost as error:
            logger.warning("request %s: %s was lost in its answer: %s", _id(request), replica.name, error)
            await self._break_off(request, replica_lost(f"{replica.name}: {error}"))
        return None

    async def _end_stopped(self, request: _Request) -> None:
        if request.exchange.stopped_by is not None:
            await self._break_off(request, request.exchange.stopped_by)
        else:
            logger.info("request %s: the client left", _id(request))

    async def _break_off(self, request: _Request, refusal: Refusal) -> None:
        """End what can't come to its own end: by the refusal where nothing was sent, by an event in a stream."""
        exchange = request.exchange
        if exchange.status is None:
            await exchange.answer(refusal_answer(refusal))
            return
        self._figures.lost()
        if not exchange.has_ended and isinstance(request.relay, StreamRelay):
            await exchange.end(request.relay.break_off(refusal))
        else:
            exchange.cut()


async def _tell_when_left(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _authorization(exchange: Exchange) -> str | None:
    """Return the one Authorization header; of two, another reader might take the other."""
    given = [value for name, value in exchange.headers if name == b"authorization"]
    return given[0].decode("utf-8", "surrogateescape") if len(given) == 1 else None


def _target(scope: Scope) -> bytes:
    raw_path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return raw_path + b"?" + query if query else raw_path


def _client(scope: Scope) -> str:
    client = scope["client"]
    # A socket for both families shows IPv4 addresses in IPv6's clothes.
    return "unknown" if client is None else str(client[0]).removeprefix("::ffff:")


def _id(request: _Request) -> str:
    return request.exchange.request_id.decode()
