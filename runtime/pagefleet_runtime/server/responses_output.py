"""A response's output items as they grow, and the events that tell of it, in the order that OpenAI's clients expect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagefleet_runtime.server.chat_choice import ChatPiece
from pagefleet_runtime.server.openai_responses import Json
from pagefleet_runtime.server.service import new_id
from pagefleet_runtime.text.choice_text import TextToken
from pagefleet_runtime.text.tool_calls import ToolCallDelta

Events = list[Json]


@dataclass(slots=True)
class _MessageItem:
    item_id: str
    index: int
    text: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)

    def part(self) -> Json:
        return {"type": "output_text", "annotations": [], "logprobs": self.logprobs, "text": "".join(self.text)}

    def item(self, status: str) -> Json:
        content = [] if status == "in_progress" else [self.part()]
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}


@dataclass(slots=True)
class _CallItem:
    item_id: str
    index: int
    call_index: int
    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def item(self, status: str) -> Json:
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.arguments),
        }


class ResponseOutput:
    """The items of one response. `push` and `close` return the events of what changed, without sequence numbers."""

    def __init__(self, logprobs_of: Callable[[Sequence[TextToken]], list[Json]]) -> None:
        self.items: list[Json] = []  # the finished ones
        self._logprobs_of = logprobs_of
        self._open: _MessageItem | _CallItem | None = None

    def push(self, piece: ChatPiece) -> Events:
        events: Events = []
        logprobs = self._logprobs_of(piece.tokens)
        if piece.text or (logprobs and not piece.calls and not isinstance(self._open, _CallItem)):
            events += self._push_text(piece.text, logprobs)
        for call in piece.calls:
            events += self._push_call(call)
        return events

    def close(self, status: str) -> Events:
        """Finish the open item. An answer without any item gets an empty message."""
        if self._open is None and not self.items:
            return self._push_text("", []) + self._close_open(status)
        return self._close_open(status)

    def _push_text(self, text: str, logprobs: list[Json]) -> Events:
        events: Events = []
        if not isinstance(self._open, _MessageItem):
            events += self._close_open("completed")
            message = _MessageItem(new_id("msg_"), len(self.items))
            self._open = message
            events.append(_item_event("added", message.index, message.item("in_progress")))
            events.append(_part_event("added", message))
        message = self._open
        message.text.append(text)
        message.logprobs.extend(logprobs)
        if text or logprobs:
            delta = _text_event("delta", message, logprobs) | {"delta": text}
            events.append(delta)
        return events

    def _push_call(self, call: ToolCallDelta) -> Events:
        events: Events = []
        if not isinstance(self._open, _CallItem) or self._open.call_index != call.index:
            events += self._close_open("completed")
            item_id = new_id("fc_")
            item = _CallItem(item_id, len(self.items), call.index, call.call_id or new_id("call_"), call.name or "")
            self._open = item
            events.append(_item_event("added", item.index, item.item("in_progress")))
        if call.arguments:
            self._open.arguments.append(call.arguments)
            events.append(_arguments_event("delta", self._open) | {"delta": call.arguments})
        return events

    def _close_open(self, status: str) -> Events:
        closing, self._open = self._open, None
        if closing is None:
            return []
        item = closing.item(status)
        self.items.append(item)
        done = _item_event("done", closing.index, item)
        if isinstance(closing, _MessageItem):
            text_done = _text_event("done", closing, closing.logprobs) | {"text": "".join(closing.text)}
            return [text_done, _part_event("done", closing), done]
        return [_arguments_event("done", closing) | {"arguments": "".join(closing.arguments)}, done]


def _item_event(what: str, index: int, item: Json) -> Json:
    return {"type": f"response.output_item.{what}", "output_index": index, "item": item}


def _part_event(what: str, message: _MessageItem) -> Json:
    place = {"item_id": message.item_id, "output_index": message.index, "content_index": 0}
    return {"type": f"response.content_part.{what}", **place, "part": message.part()}


def _text_event(what: str, message: _MessageItem, logprobs: list[Json]) -> Json:
    place = {"item_id": message.item_id, "output_index": message.index, "content_index": 0}
    return {"type": f"response.output_text.{what}", **place, "logprobs": [_short(entry) for entry in logprobs]}


def _short(entry: Json) -> Json:
    """Return a token's entry as events have it: without its bytes."""
    top = [{"token": other["token"], "logprob": other["logprob"]} for other in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}


def _arguments_event(what: str, call: _CallItem) -> Json:
    place = {"item_id": call.item_id, "output_index": call.index}
    return {"type": f"response.function_call_arguments.{what}", **place}
