"""For models whose chat template knows no tools: the tools as a system text, and calls as text, in Hermes' format."""

import json
from collections.abc import Sequence

_INSTRUCTIONS = """\
You may call one or more functions to help with the user's request. Their signatures:
<tools>
{tools}
</tools>
To call a function, answer with a JSON object of its name and its arguments within <tool_call></tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def with_tools(messages: Sequence[dict[str, object]], tools: Sequence[object]) -> list[dict[str, object]]:
    """Return the messages with the tools described in the system message, which is added in front if there is none."""
    text = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [first | {"content": f"{first['content']}\n\n{text}"}, *messages[1:]]


def with_calls_as_text(message: dict[str, object]) -> dict[str, object]:
    """Return an assistant message whose tool calls stand in its content."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    texts = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return kept | {"content": "\n".join(filter(None, (str(message["content"]), *texts)))}
