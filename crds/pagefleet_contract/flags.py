"""Command-line flags made from EngineConfig, so that flag, file and resource never differ.

A flag is the field's path in kebab case. `--config FILE` is read first, flags override what it says.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from pagefleet_contract.engine import EngineConfig, Quantity
from pagefleet_contract.names import ENV_LISTEN_ADDRESS, HTTP_PORT, KIND
from pagefleet_contract.near_names import did_you_mean, near_field
from pagefleet_contract.policy import LIVE_PATHS, LivePolicy, with_policy

_BUDGET = ("kv_cache", "budget")
_URI = ("model", "uri")
_SECTION_TITLES = {
    "model": "the model",
    "kv_cache": "the KV cache",
    "scheduling": "scheduling",
    "serving": "serving",
    "parallel": "several processes for one model",
    "simulation": "simulation, for simulated:// models alone",
}

# What vLLM calls them, where no likeness tells.
_NAMES_OF_VLLM = {
    "--max-model-len": "--model-max-length",
    "--max-num-seqs": "--scheduling-max-sequences",
    "--max-num-batched-tokens": "--scheduling-max-batch-tokens",
    "--gpu-memory-utilization": "--kv-cache-budget-memory-percent",
    "--tensor-parallel-size": "--parallel-tensor",
    "--api-key": "--serving-api-keys-file",
    "--dtype": "--model-dtype",
}


class ConfigRefused(Exception):
    """The settings are wrong; `lines` says so, one fault a line: the field, what was found, what was expected."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `pagefleet serve` was told. `host` is None where the flag wasn't given."""

    config: EngineConfig
    host: str | None
    port: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field that holds a value, and the path of names to it."""

    path: tuple[str, ...]
    info: FieldInfo
    default: Any  # None where there is none

    @property
    def flag(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def choices(self) -> tuple[Any, ...] | None:
        kind = _value_type(self.info)
        return get_args(kind) if get_origin(kind) is Literal else None

    @property
    def is_whole_number(self) -> bool:
        choices = self.choices
        return _value_type(self.info) is int if choices is None else isinstance(choices[0], int)


def leaves() -> tuple[Leaf, ...]:
    """Return every field of EngineConfig that holds a value, in the order in which they are written there."""
    return tuple(_leaves(EngineConfig, (), None))


def parse_serve(arguments: Sequence[str], program: str) -> ServeOptions:
    """Parse the command line of the server. Raises ConfigRefused for settings; prints help and exits for --help."""
    given = vars(build_parser(program).parse_all(arguments))
    base = {} if given["config"] is None else read_config_file(Path(given["config"]))
    values = {leaf.path: given["_".join(leaf.path)] for leaf in leaves() if leaf.path != _URI}
    values[_URI] = given["model_uri"] if given["model_uri"] is not None else given["model_uri_flag"]
    config = merge_flags(base, {path: value for path, value in values.items() if value is not None})
    if given["live"] is not None:
        config = with_policy(config, read_live_file(Path(given["live"])))
    return ServeOptions(config, given["host"], given["port"])


def merge_flags(base: Mapping[str, Any], flags: Mapping[tuple[str, ...], str]) -> EngineConfig:
    """Return the settings of a file with flags (by field path, as text) over them. Raises ConfigRefused."""
    merged = _by_field_name(EngineConfig, base, ())
    if any(path[:2] == _BUDGET for path in flags) and isinstance(merged.get("kv_cache"), dict):
        # Exactly one way of budgeting may be set; the flag's way replaces the file's.
        merged["kv_cache"].pop("budget", None)
    for leaf in leaves():
        if leaf.path in flags:
            _put(merged, leaf.path, _typed(leaf, flags[leaf.path]))
    return check_config(merged)


def check_config(values: Mapping[str, Any]) -> EngineConfig:
    """Return the settings, checked. Raises ConfigRefused."""
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigRefused([_fault_line(fault) for fault in error.errors(include_url=False)]) from error


def read_config_file(path: Path) -> dict[str, Any]:
    """Return what a YAML or JSON file says, unchecked. Raises ConfigRefused where it is neither."""
    values = _read_mapping("--config", path, "a mapping with `model`")
    if "apiVersion" in values and "kind" in values:
        kind = values["kind"]
        is_ours = kind == KIND
        told = f"an {KIND}" if is_ours else f"a Kubernetes object ({kind})"
        use = f"use `pagefleet up {path}`" if is_ours else "--help has all of them"
        raise ConfigRefused([f"--config {path} is {told}, not a server's settings; {use}"])
    return values


def read_live_file(path: Path) -> dict[str, int]:
    """Return the live settings of a file, checked, by their names in the policy. Raises ConfigRefused."""
    values = _read_mapping("--live", path, "a mapping")
    try:
        policy = LivePolicy.model_validate(values)
    except ValidationError as error:
        raise ConfigRefused(
            [f"--live {path}: {_live_fault(fault)}" for fault in error.errors(include_url=False)]
        ) from error
    return policy.model_dump(exclude_none=True)


def _live_fault(fault: Any) -> str:
    if fault["type"] != "extra_forbidden":
        return _fault_line(fault)
    known = ", ".join(to_camel(name) for name in LIVE_PATHS)
    return f"{_spelled(fault['loc'])} can't change while the server runs; these can: {known}"


def _read_mapping(flag: str, path: Path, expected: str) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigRefused([f"{flag} {path}: {error.strerror}"]) from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigRefused([f"{flag} {path}: {' '.join(str(error).split())}"]) from error
    if not isinstance(values, dict):
        raise ConfigRefused([f"{flag} {path} holds {type(values).__name__}; expected {expected}"])
    return values


def to_flags(config: EngineConfig) -> list[str]:
    """Return the flags that give these settings: what differs from the defaults, and the model."""
    found = []
    for leaf in leaves():
        value = _value_at(config, leaf.path)
        if value is not None and value != leaf.default:
            found.append(f"{leaf.flag}={value}")
    return found


def build_parser(program: str) -> "ServeParser":
    """Return the parser of the server's command line. Every value stays text: the settings' model checks it."""
    parser = ServeParser(
        prog=program,
        usage=f"{program} [MODEL_URI] [options]",
        description="Serve a language model over the OpenAI API, from a paged KV cache.",
        allow_abbrev=False,
        add_help=True,
    )
    parser.add_argument("model_uri", nargs="?", metavar="MODEL_URI", help="the model to serve; see --model-uri")
    server = parser.add_argument_group("the server")
    server.add_argument("--config", metavar="FILE", help="YAML or JSON file with the settings; flags override it")
    server.add_argument(
        "--live",
        metavar="FILE",
        help="JSON file with settings that can change while the server runs; laid over all others",
    )
    server.add_argument(
        "--host", metavar="ADDRESS", help=f"address to listen on [default: ${ENV_LISTEN_ADDRESS}, or 127.0.0.1]"
    )
    server.add_argument(
        "--port",
        metavar="N",
        type=_port,
        default=HTTP_PORT,
        help=f"port to listen on; 0 takes a free one [default: {HTTP_PORT}]",
    )
    groups = {name: parser.add_argument_group(title) for name, title in _SECTION_TITLES.items()}
    for leaf in leaves():
        _add_flag(groups[leaf.path[0]], leaf)
    return parser


class ServeParser(argparse.ArgumentParser):
    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse as `parse_args` does; an unknown flag is refused with the one that is meant."""
        given, unknown = self.parse_known_args(list(arguments))
        if unknown:
            flag = unknown[0].partition("=")[0]
            ours = _NAMES_OF_VLLM.get(flag)
            meant = f"; did you mean {ours}?" if ours else did_you_mean(flag, self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return given

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{self.prog}: {message}{end} see {self.prog} --help\n")


def _add_flag(group: "argparse._ArgumentGroup", leaf: Leaf) -> None:
    names = [leaf.flag]
    if leaf.path == ("model", "served_name"):
        names.insert(0, "--served-name")
    target = "model_uri_flag" if leaf.path == _URI else "_".join(leaf.path)
    group.add_argument(*names, dest=target, metavar=_metavar(leaf), help=_help(leaf).replace("%", "%%"))


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; expected 0 to 65535")
    return int(text)


def _metavar(leaf: Leaf) -> str:
    if leaf.choices is not None:
        return "{" + ",".join(str(choice) for choice in leaf.choices) + "}"
    if leaf.is_whole_number:
        return "N"
    if leaf.path[-1] == "memory":
        return "SIZE"
    return "FILE" if leaf.path[-1].endswith("_file") else "TEXT"


def _help(leaf: Leaf) -> str:
    """Return the field's description with its unit's bounds and its default."""
    facts = [] if leaf.default is None else [f"default: {leaf.default}"]
    least = next((limit.ge for limit in leaf.info.metadata if isinstance(limit, annotated_types.Ge)), None)
    most = next((limit.le for limit in leaf.info.metadata if isinstance(limit, annotated_types.Le)), None)
    if least is not None:
        facts.append(f"{least} or more" if most is None else f"{least} to {most}")
    text = " ".join((leaf.info.description or "").split())
    return f"{text} [{'; '.join(facts)}]" if facts else text


def _value_type(info: FieldInfo) -> Any:
    """Return the field's type without `| None` and without what is only annotated."""
    kind = info.annotation
    if get_origin(kind) in (UnionType, Union):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return str if kind == Quantity else kind


def _leaves(model: type[BaseModel], path: tuple[str, ...], defaults: Any) -> Iterator[Leaf]:
    for name, info in model.model_fields.items():
        default = info.get_default() if defaults is None else getattr(defaults, name)
        kind = _value_type(info)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _leaves(kind, (*path, name), default if isinstance(default, BaseModel) else None)
        else:
            known = default if isinstance(default, (str, int)) else None
            yield Leaf((*path, name), info, known)


def _by_field_name(model: type[BaseModel], values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the mapping with field names for known keys, so that flags can be laid over either spelling."""
    names = {info.alias or name: name for name, info in model.model_fields.items()}
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = names.get(key, key)
        if name in found:
            raise ConfigRefused([f"{_spelled((*path, name))} is given twice, in two spellings; give it once"])
        kind = _value_type(model.model_fields[name]) if name in model.model_fields else None
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            value = _by_field_name(kind, value, (*path, name))
        found[name] = value
    return found


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(values.get(name), dict):
            values[name] = {}
        values = values[name]
    values[path[-1]] = value


def _typed(leaf: Leaf, text: str) -> str | int:
    """Return a number where the field wants one and the text is one; else the text, for the model to refuse."""
    if leaf.is_whole_number:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def _value_at(config: BaseModel, path: tuple[str, ...]) -> Any:
    value: Any = config
    for name in path:
        value = getattr(value, name)
    return value


def _spelled(path: Sequence[str | int]) -> str:
    """Return a path as files spell it: camelCase, with dots."""
    return ".".join(to_camel(part) if isinstance(part, str) and "_" in part else str(part) for part in path)


def _fault_line(fault: Any) -> str:
    where = _spelled(fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing":
        hint = "; give MODEL_URI, --model-uri or model.uri in --config" if where in ("model", "model.uri") else ""
        return f"{where} is missing{hint}"
    if fault["type"] == "extra_forbidden":
        return f"{where} is not a setting{near_field(EngineConfig, fault['loc']) or '; see --help for all of them'}"
    if fault["type"] == "value_error":
        return message if message.startswith(where) else f"{where}: {message}"
    return f"{where} is {json.dumps(fault['input'], default=str)}; {message[:1].lower()}{message[1:]}"
