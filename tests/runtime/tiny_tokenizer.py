"""A tokenizer that needs no download: one token a byte, four control tokens, and a ChatML template."""

import json
from pathlib import Path

CONTROL_TOKENS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
BOS_ID, IM_START_ID, EOS_ID, PAD_ID = 256, 257, 258, 259

CHAT_TEMPLATE = """\
{%- if tools %}
<|im_start|>system
You may call these tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role not in ["system", "developer", "user", "assistant", "tool"] %}
{{- raise_exception("the role " ~ message.role ~ " is unknown") }}
{%- endif %}
{{- "<|im_start|>" ~ message.role }}
{%- if message.name %}{{ " " ~ message.name }}{% endif %}
{{- "\\n" ~ (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{{- "<tool_call>" }}{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
{{- "</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|im_start|>assistant\\n" }}
{%- if enable_thinking is false %}{{ "<think></think>" }}{% endif %}
{%- endif %}"""


def byte_letters() -> list[str]:
    """Return the letter that byte-level BPE writes for each byte, in the order of the bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def write_tiny_tokenizer(
    directory: Path, chat_template: str | None = CHAT_TEMPLATE, merged: tuple[tuple[str, str], ...] = ()
) -> int:
    """Write the files of the tokenizer into `directory` and return the size of its vocabulary.

    Token i below 256 is byte i; the control tokens follow; then one token for each pair of `merged`, whose halves are
    ASCII texts that are tokens already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    control = {text: 256 + index for index, text in enumerate(CONTROL_TOKENS)}
    halves = [(left.replace(" ", "Ġ"), right.replace(" ", "Ġ")) for left, right in merged]
    for index, (left, right) in enumerate(halves):
        vocabulary[left + right] = 256 + len(control) + index
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for text, number in control.items()
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary | control, "merges": [list(pair) for pair in halves]},
    }
    configuration: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        configuration["chat_template"] = chat_template
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
    return 256 + len(control) + len(halves)


def write_tiny_sentencepiece(directory: Path, strips_first_space: bool) -> int:
    """Write a sentencepiece-like tokenizer, as Llama's (whose first space isn't shown) or Gemma's, and return the size
    of its vocabulary: 4 control tokens, 256 byte tokens, then ASCII letters with a space before them or not."""
    directory.mkdir(parents=True, exist_ok=True)
    control = ("<unk>", "<s>", "</s>", "<pad>")
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters]
    merges = [["\u2581", letter] for letter in letters]
    vocabulary = {token: place for place, token in enumerate([*tokens, *("".join(pair) for pair in merges)])}
    strip: list[dict[str, object]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    replace: list[dict[str, object]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": place, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for place, text in enumerate(control)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": ([{"type": "Prepend", "prepend": "\u2581"}] if strips_first_space else []) + replace,
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *(strip if strips_first_space else []),
            ],
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": "<unk>", "byte_fallback": True},
    }
    configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
    return len(vocabulary)
