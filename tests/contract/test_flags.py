"""Flags are the settings: each field has one, files and flags combine, mistakes are one line each."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.engine import SIMULATED_SCHEME, EngineConfig
from pagefleet_contract.flags import (
    ConfigRefused,
    Leaf,
    build_parser,
    check_config,
    leaves,
    merge_flags,
    parse_serve,
    to_flags,
)


def parsed(*arguments: str) -> EngineConfig:
    return parse_serve(arguments, "pagefleet serve").config


def refusal(*arguments: str) -> tuple[str, ...]:
    with pytest.raises(ConfigRefused) as refused:
        parsed(*arguments)
    return refused.value.lines


def a_file(folder: Path, text: str, name: str = "engine.yaml") -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def test_the_model_is_the_first_argument_and_the_rest_has_defaults() -> None:
    assert parsed("hf://a/b") == check_config({"model": {"uri": "hf://a/b"}})


def test_flags_are_the_paths_of_the_fields() -> None:
    flags = {leaf.flag for leaf in leaves()}
    assert {
        "--model-dtype",
        "--kv-cache-block-size",
        "--kv-cache-budget-memory-percent",
        "--kv-cache-prefix-sharing-retention-ttl-seconds",
        "--scheduling-max-sequences",
        "--serving-drain-timeout-seconds",
    } <= flags


def test_every_field_is_described() -> None:
    assert [leaf.flag for leaf in leaves() if not leaf.info.description] == []


def test_the_short_form_names_the_model() -> None:
    assert parsed("m", "--served-name", "chat").model.served_name == "chat"
    assert parsed("m", "--model-served-name", "chat").model.served_name == "chat"


def test_host_and_port_are_taken() -> None:
    options = parse_serve(["m", "--host", "::1", "--port", "0"], "pagefleet serve")
    assert (options.host, options.port) == ("::1", 0)
    assert parse_serve(["m"], "pagefleet serve").port == 8000


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, "model: {uri: from-file, maxLength: 64}\nscheduling: {maxQueue: 7, max_sequences: 3}\n")
    config = parsed("--config", file, "--scheduling-max-queue", "9")
    assert (config.model.uri, config.model.max_length) == ("from-file", 64)
    assert (config.scheduling.max_queue, config.scheduling.max_sequences) == (9, 3)


def test_a_json_file_is_read_too(tmp_path: Path) -> None:
    assert parsed("--config", a_file(tmp_path, '{"model": {"uri": "j"}}', "engine.json")).model.uri == "j"


def test_one_way_of_budgeting_replaces_the_files(tmp_path: Path) -> None:
    file = a_file(tmp_path, "model: {uri: m}\nkvCache: {blockSize: 8, budget: {memory: 2Gi}}\n")
    config = parsed("--config", file, "--kv-cache-budget-blocks", "12")
    assert (config.kv_cache.budget.blocks, config.kv_cache.budget.memory, config.kv_cache.block_size) == (12, None, 8)


def test_two_ways_of_budgeting_are_refused() -> None:
    (line,) = refusal("m", "--kv-cache-budget-blocks", "3", "--kv-cache-budget-memory", "1Gi")
    assert "kvCache.budget has blocks and memory" in line and "at most one" in line


def test_every_mistake_has_a_line_with_the_field_what_was_found_and_what_was_expected() -> None:
    lines = refusal("m", "--kv-cache-block-size", "24", "--scheduling-max-queue", "many", "--model-dtype", "int3")
    assert len(lines) == 3
    assert "model.dtype" in lines[0] and "int3" in lines[0] and "bfloat16" in lines[0]
    assert "kvCache.blockSize" in lines[1] and "24" in lines[1] and "16" in lines[1]
    assert "scheduling.maxQueue" in lines[2] and "many" in lines[2]


def test_a_missing_model_is_said_with_what_to_do() -> None:
    (line,) = refusal("--port", "1")
    assert "MODEL_URI" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {uri: m, colour: red}", "model.colour is not a setting; see --help"),
        ('model: {uri: m, servedName: "a\\nb"}', "model.servedName: the name has the control character '\\n'; leave"),
        ('model: {uri: m, servedName: "a\\x85"}', "model.servedName: the name has the control character '\\x85'"),
        ("model: {uri: m, servdName: x}", "model.servdName is not a setting; did you mean servedName?"),
        ("model: {uri: m}\nkv_cache: {blokSize: 16}", "blokSize is not a setting; did you mean blockSize?"),
        ("model: {uri: m}\nkvcache: {blockSize: 16}", "kvcache is not a setting; did you mean kvCache?"),
        ("- 1", "holds list"),
        (
            "apiVersion: pagefleet.dev/v1alpha1\nkind: InferenceService\nspec: {}",
            "is an InferenceService, not a server's settings; use `pagefleet up ",
        ),
        ("apiVersion: v1\nkind: Pod\nspec: {}", "is a Kubernetes object (Pod), not a server's settings"),
        ("model: {uri: m", "--config"),
        ("model: {uri: m}\nkvCache: {blockSize: 8, block_size: 16}", "kvCache.blockSize is given twice"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (line,) = refusal("--config", a_file(tmp_path, text))
    assert words in line and "\n" not in line


def test_a_file_that_is_not_there_is_named() -> None:
    assert refusal("--config", "/nowhere/engine.yaml") == ("--config /nowhere/engine.yaml: No such file or directory",)


def test_an_unknown_flag_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("m", "--scheduling-max-sequence", "3")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "--scheduling-max-sequence 3; did you mean --scheduling-max-sequences? see pagefleet serve --help"
    )


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--max-model-len", "--model-max-length"),
        ("--max-num-seqs", "--scheduling-max-sequences"),
        ("--gpu-memory-utilization", "--kv-cache-budget-memory-percent"),
        ("--tensor-parallel-size", "--parallel-tensor"),
        ("--dtype", "--model-dtype"),
    ],
)
def test_a_flag_of_vllm_is_told_as_ours(flag: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("m", f"{flag}=3")
    assert f"did you mean {ours}?" in capsys.readouterr().err
    assert ours in {leaf.flag for leaf in leaves()}


def test_help_shows_every_flag_with_its_default_and_bounds() -> None:
    text = " ".join(build_parser("pagefleet serve").format_help().split())
    for leaf in leaves():
        assert leaf.flag in text
    assert "[default: 256; 1 to 4096]" in text
    assert "90 where none of the three is given. [1 to 100]" in text


def _values(leaf: Leaf) -> st.SearchStrategy[Any]:
    if leaf.choices is not None:
        return st.sampled_from(leaf.choices)
    if leaf.path[-1] == "memory":
        return st.builds("{}{}".format, st.integers(1, 999), st.sampled_from(["", "k", "Mi", "Gi"]))
    if not leaf.is_whole_number:
        return _not_the_end(st.text("aZ9é日 =-/%#'\"", min_size=1, max_size=8))
    limits = {type(limit).__name__: limit for limit in leaf.info.metadata}
    return st.integers(limits["Ge"].ge, limits["Le"].le if "Le" in limits else 10**6)


def _not_the_end(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """argparse takes a value that is "--" for the end of the options."""
    return texts.filter(lambda text: text != "--")


@st.composite
def configs(draw: st.DrawFn, simulated: bool = False) -> EngineConfig:
    """Settings with any of the fields set, and one way of budgeting at most."""
    budget = [leaf for leaf in leaves() if leaf.path[:2] == ("kv_cache", "budget")]
    others = [leaf for leaf in leaves() if leaf not in budget and leaf.path != ("model", "uri")]
    chosen = draw(st.lists(st.sampled_from(others), unique=True)) + draw(st.lists(st.sampled_from(budget), max_size=1))
    name = draw(_not_the_end(st.text("abc:/-=", min_size=1)))
    # Only a simulated model takes settings of the simulation, and it has no ranks.
    simulated = simulated or any(leaf.path[0] == "simulation" for leaf in chosen)
    chosen = [leaf for leaf in chosen if not (simulated and leaf.path[0] == "parallel")]
    # Quantised weights have one kind of kernels alone.
    quantised = any(leaf.path == ("model", "quantization") for leaf in chosen)
    chosen = [leaf for leaf in chosen if not (quantised and leaf.path == ("model", "kernels"))]
    uri = SIMULATED_SCHEME + name if simulated else name
    values: dict[str, Any] = {"model": {"uri": uri}}
    for leaf in chosen:
        section = values
        for name in leaf.path[:-1]:
            section = section.setdefault(name, {})
        section[leaf.path[-1]] = draw(_values(leaf))
    return EngineConfig.model_validate(values)


@given(configs())
def test_settings_round_trip_through_flags(config: EngineConfig) -> None:
    assert parsed(*to_flags(config)) == config


@given(configs(simulated=True), configs(simulated=True))
def test_flags_win_over_any_file(in_file: EngineConfig, in_flags: EngineConfig) -> None:
    flags = {leaf.path: str(value) for leaf in leaves() if (value := _at(in_flags, leaf.path)) is not None}
    merged = merge_flags(in_file.model_dump(by_alias=True, exclude_none=True), flags)
    assert all(str(_at(merged, path)) == text for path, text in flags.items())


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = getattr(value, name)
    return value


def live_file(folder: Path, text: str) -> str:
    path = folder / "live.json"
    path.write_text(text, "utf-8")
    return str(path)


def test_live_settings_are_laid_over_file_and_flags(tmp_path: Path) -> None:
    live = live_file(tmp_path, '{"maxSequences": 7, "retentionTtlSeconds": 60}')
    config = parse_serve(
        ["m", "--scheduling-max-sequences", "9", "--scheduling-max-queue", "5", "--live", live], "p"
    ).config
    assert config.scheduling.max_sequences == 7
    assert config.scheduling.max_queue == 5
    assert config.kv_cache.prefix_sharing.retention.ttl_seconds == 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"maxSequences": "x"}', r'maxSequences is "x"; input should be a valid integer'),
        ('{"maxQueue": 0}', "maxQueue is 0; input should be greater than or equal to 1"),
        ('{"kvBlocks": 3}', "kvBlocks can't change while the server runs; these can: maxSequences, "),
        ("[]", "holds list; expected a mapping"),
        ("no", "Expecting value"),
    ],
)
def test_a_wrong_file_of_live_settings_is_refused_with_the_fault(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigRefused, match=message):
        parse_serve(["m", "--live", live_file(tmp_path, text)], "p")


def test_an_absent_file_of_live_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"--live .*No such file"):
        parse_serve(["m", "--live", str(tmp_path / "absent.json")], "p")
