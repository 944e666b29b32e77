"""A client's own variables for the chat template (chat_template_kwargs): plain values, under names that mean nothing
else to a template or to what renders it."""

from collections.abc import Collection, Mapping

from pagefleet_runtime.errors import invalid

PARAM = "chat_template_kwargs"
MAX_VARIABLES = 32
MAX_NAME_CHARACTERS = 64
MAX_TEXT_CHARACTERS = 1024
# A template may repeat a text or a loop by such a number.
MAX_NUMBER = 1_000_000

# What the server and the renderer give a template themselves, and the functions that templates call.
_TAKEN = frozenset(
    "messages conversations tools documents chat_template add_generation_prompt continue_final_message tokenize "
    "return_assistant_tokens_mask bos_token eos_token unk_token sep_token pad_token cls_token mask_token "
    "additional_special_tokens raise_exception strftime_now range dict lipsum cycler joiner namespace self".split()
)

Value = str | int | float | bool | None


def checked_variables(given: Mapping[str, object], special_tokens: Collection[str]) -> dict[str, Value]:
    """Return the variables, checked. Raises RequestRefused (400) that names the one that can't be passed on."""
    if len(given) > MAX_VARIABLES:
        raise invalid(f"{PARAM} has {len(given)} names; it may have {MAX_VARIABLES}", PARAM)
    taken = sorted(name for name in given if name in _TAKEN or name in special_tokens)
    if taken:
        raise invalid(f"{PARAM} can't set {', '.join(taken)}: the chat template gets that from the server", PARAM)
    return {_checked_name(name): _checked_value(name, value) for name, value in given.items()}


def _checked_name(name: str) -> str:
    if not (name.isascii() and name.isidentifier()) or name.startswith("__") or len(name) > MAX_NAME_CHARACTERS:
        raise invalid(
            f"{PARAM} has the name '{name[:MAX_NAME_CHARACTERS]}'; a template's variables have letters, digits and "
            f"underscores, {MAX_NAME_CHARACTERS} at most",
            PARAM,
        )
    return name


def _checked_value(name: str, value: object) -> Value:
    where = f"{PARAM}.{name}"
    if not isinstance(value, str | int | float | bool | None):
        kind = "an array" if isinstance(value, list) else "an object"
        raise invalid(f"{where} is {kind}; it must be a string, a number, true, false or null", where)
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARACTERS:
        raise invalid(f"{where} has {len(value)} characters; it may have {MAX_TEXT_CHARACTERS}", where)
    if isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise invalid(f"{where} is too large a number; it must be {-MAX_NUMBER} to {MAX_NUMBER}", where)
    return value
