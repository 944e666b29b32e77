"""What a person sees when the server is up."""

import json
from collections.abc import Sequence


def aligned_table(rows: Sequence[tuple[str, str]]) -> str:
    """Return rows of label and value as text, the values below each other."""
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join(f"  {label:<{width}}  {value}".rstrip() for label, value in rows)


def ready_lines(url: str, model_name: str, needs_key: bool) -> str:
    """Return what a person reads when the server is up: where it is, and a command that works."""
    body = {"model": model_name, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32}
    key = ' -H "Authorization: Bearer $API_KEY"' if needs_key else ""
    # An apostrophe in the name would end the shell's quotes.
    text = json.dumps(body, ensure_ascii=False).replace("'", r"'\''")
    return (
        f"pagefleet serves {model_name} at {url}/v1; try:\n"
        f"  curl -s {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{text}'"
    )
