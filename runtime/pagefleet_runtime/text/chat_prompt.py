"""Chat messages to token ids by the model's own template. Text that a client typed never becomes a control token."""

from collections.abc import Mapping, Sequence

from pagefleet_runtime.text.tokenizer import Tokenizer

Message = Mapping[str, object]
Tool = Mapping[str, object]


class ChatPrompt:
    """One per model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        raise NotImplementedError

    def ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the prompt of a chat, the beginning of the assistant's turn included.

        `messages` and `tools` are as the client sent them (JSON); everything in them is checked here. Pass no tools
        where tool_choice is none. Text parts are joined by a newline, in order. Raises RequestRefused (400) that
        names the message's index and the reason, also for what the template refuses.
        """
        raise NotImplementedError
