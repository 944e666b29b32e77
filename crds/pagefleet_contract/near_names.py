"""For messages about a name that isn't known: the known one that comes near it, and which names a section has."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

# Lower, and any two short names are alike; higher, and a missing letter in one isn't seen.
_LEAST_LIKENESS = 0.7


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what to append to a message: `; did you mean NAME?`, or nothing where no known name comes near."""
    by_letters = {_letters(each): each for each in known}
    near = difflib.get_close_matches(_letters(name), by_letters, n=1, cutoff=_LEAST_LIKENESS)
    return f"; did you mean {by_letters[near[0]]}?" if near else ""


def one_letter_off(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that differs from this one by a single letter, or by its spelling alone."""
    return next((each for each in known if _is_one_edit(_letters(name), _letters(each))), None)


def near_field(model: type[BaseModel], path: Sequence[str | int]) -> str:
    """Return `did_you_mean` for an unknown field, by its path from the model on."""
    section: type[BaseModel] | None = model
    for part in path[:-1]:
        if section is None or isinstance(part, int):
            continue
        kinds = {name: info.annotation for name, info in section.model_fields.items()}
        kinds |= {info.alias: info.annotation for info in section.model_fields.values() if info.alias}
        section = _section_of(kinds.get(part))
    known = () if section is None else [info.alias or name for name, info in section.model_fields.items()]
    return did_you_mean(str(path[-1]), known)


def fault_text(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    """Return one of pydantic's faults of a model as a line: where, what, and for an unknown field the near one."""
    where = ".".join(map(str, fault["loc"])) or "the file"
    hint = near_field(model, fault["loc"]) if fault["type"] == "extra_forbidden" else ""
    return f"{where}: {fault['msg']}{hint}"


def _section_of(kind: Any) -> type[BaseModel] | None:
    """Return the section that a field of this type holds, itself, in a list or if given."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for part in get_args(kind) if (found := _section_of(part))), None)


def _letters(name: str) -> str:
    """Return the name without what tells spellings apart: maxLength, max_length and --max-length are one."""
    return name.lower().replace("_", "").replace("-", "")


def _is_one_edit(one: str, other: str) -> bool:
    """Whether one letter that is changed, left out or put in makes one of the other; equal ones are, too."""
    shorter, longer = sorted((one, other), key=len)
    same = next((place for place, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    return shorter[same:] == longer[same + 1 :] or shorter[same + 1 :] == longer[same + 1 :]
