"""Models in S3 buckets: what is downloaded, taken up again, and said of what goes wrong."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pagefleet_contract.engine import ModelSettings
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.paths import GgufFile, ModelDirectory
from pagefleet_runtime.models.s3 import download_prefix
from pagefleet_runtime.models.s3_client import Bucket, S3Access, S3Failure
from pagefleet_runtime.models.s3_signing import Credentials, signed_headers
from pagefleet_runtime.models.sources import resolve_source
from tests.runtime.s3_server import PAGE_KEYS, CuttingProxy, S3Server, s3_server

pytest.importorskip("moto", reason="needs moto's S3 server; `make install` brings it")

WEIGHTS = os.urandom(3 * 2**20 + 17)
MODEL = {
    "models/tiny/config.json": b"{}",
    "models/tiny/model.safetensors": WEIGHTS,
    "models/tiny/sub folder/é+tokenizer.json": b"[1]",
    "models/tiny/pytorch_model.bin": b"pickle",
    "models/tiny-other/config.json": b"other",
}
GGUF = b"GGUF" + bytes(100)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        server.make_bucket(
            "shelf", {**MODEL, "one.gguf": GGUF, "empty/notes.md": b"-", "evil/%2E%2E/config.json": b"{}"}
        )
        server.make_bucket("many", {f"m/part-{index}.json": b"{}" for index in range(3 * PAGE_KEYS + 1)})
        yield server


def environment(url: str, **more: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", **more}


def download(reference: str, cache: Path, url: str, told: list[tuple[float, str]] | None = None) -> Path:
    return download_as(environment(url), reference, cache, told)


def download_as(
    variables: dict[str, str], reference: str, cache: Path, told: list[tuple[float, str]] | None = None
) -> Path:
    access = S3Access.of(variables)
    return download_prefix(
        reference, cache, access, lambda *progress: (told if told is not None else []).append(progress)
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_lies_below_the_prefix_is_downloaded_but_for_pickles(server: S3Server, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    folder = download("shelf/models/tiny", tmp_path, server.url, told)
    assert files(folder) == {
        "config.json": b"{}",
        "model.safetensors": WEIGHTS,
        "sub folder/é+tokenizer.json": b"[1]",
    }
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) > 2
    assert "MiB" in told[-1][1]


def test_what_is_there_is_not_downloaded_again(server: S3Server, tmp_path: Path) -> None:
    first = download("shelf/models/tiny/", tmp_path, server.url)
    proxy = CuttingProxy(server.url)
    with proxy.running() as url:
        again = download("shelf/models/tiny/", tmp_path / "other", url)
        num_connections = proxy.num_connections
        assert files(again) == files(first)
        download("shelf/models/tiny/", tmp_path / "other", url)
    assert proxy.num_connections == num_connections + 1  # the listing


def test_a_replaced_model_is_another_folder(server: S3Server, tmp_path: Path) -> None:
    server.make_bucket("changing", {"config.json": b"1"})
    first = download("changing", tmp_path, server.url)
    server.make_bucket("changing", {"config.json": b"2"})
    second = download("changing", tmp_path, server.url)
    assert (files(first), files(second)) == ({"config.json": b"1"}, {"config.json": b"2"})


def test_uris_give_directories_and_gguf_files(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(server.url).items():
        monkeypatch.setenv(name, value)

    def resolve(uri: str) -> Any:
        return resolve_source(ModelSettings(uri=uri), tmp_path, lambda share, detail: None)

    assert isinstance(resolve("s3://shelf/models/tiny"), ModelDirectory)
    assert isinstance(resolve("s3://shelf/one.gguf"), GgufFile)


def test_a_long_listing_is_read_page_by_page(server: S3Server) -> None:
    bucket = Bucket("many", S3Access.of(environment(server.url)))
    assert len(list(bucket.objects("m/"))) == 3 * PAGE_KEYS + 1


@pytest.mark.parametrize("resets", [False, True])
def test_a_connection_that_breaks_is_taken_up_where_it_ended(server: S3Server, tmp_path: Path, resets: bool) -> None:
    proxy = CuttingProxy(server.url, [None, 2**20, 2**20, 0, 2**20], resets)
    server.make_bucket("single", {"model.safetensors": WEIGHTS})
    with proxy.running() as url:
        folder = download("single", tmp_path, url)
    assert files(folder) == {"model.safetensors": WEIGHTS}
    assert proxy.num_connections >= 5


def test_a_download_that_was_killed_goes_on_with_what_is_there(server: S3Server, tmp_path: Path) -> None:
    server.make_bucket("resumed", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    folder = download("resumed", tmp_path, server.url)
    partial = folder.with_name(folder.name + ".partial")
    folder.rename(partial)
    (partial / "model.safetensors").rename(partial / "model.safetensors.unfinished")
    os.truncate(partial / "model.safetensors.unfinished", 2**20)
    told: list[tuple[float, str]] = []
    assert files(download("resumed", tmp_path, server.url, told)) == {
        "model.safetensors": WEIGHTS,
        "config.json": b"{}",
    }
    assert told[0][0] < 0.5


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("", "names no bucket"),
        ("shelf/empty", "it holds notes.md; expected config.json"),
        ("shelf/nothing", "it holds nothing"),
        ("shelf/two.gguf", "it holds nothing"),
        ("shelf/evil", r"evil/\.\./config\.json' has a name that can't be a file's"),
        ("nobucket/x", "NoSuchBucket.*AWS_ENDPOINT_URL"),
    ],
)
def test_what_cant_be_found_is_said(server: S3Server, tmp_path: Path, reference: str, words: str) -> None:
    with pytest.raises(ModelRefused, match=words):
        download(reference, tmp_path, server.url)


def test_an_endpoint_that_isnt_there_is_named(tmp_path: Path) -> None:
    access = S3Access.of(environment("http://127.0.0.1:1"))
    waits: list[float] = []
    with pytest.raises(S3Failure, match=r"http://127.0.0.1:1 can't be reached: .*refused"):
        list(Bucket("b", access, waits.append).objects(""))
    assert waits == sorted(waits) and len(waits) > 2


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "x"}, "set both"),
        ({"AWS_ENDPOINT_URL": "ftp://x"}, "must begin with http"),
    ],
)
def test_wrong_variables_are_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ModelRefused, match=words):
        S3Access.of(variables)


def test_signed_requests_pass_and_others_are_told_what_is_missing(tmp_path: Path) -> None:
    with s3_server() as server:
        server.make_bucket("private", {"a b/é+.json": b"{}"})
        access_key, secret_key = server.make_user()
        server.ask_for_signatures()
        right = environment(server.url, AWS_ACCESS_KEY_ID=access_key, AWS_SECRET_ACCESS_KEY=secret_key)
        assert files(download_as(right, "private/a b", tmp_path)) == {"é+.json": b"{}"}
        wrong = right | {"AWS_SECRET_ACCESS_KEY": "wrong"}
        with pytest.raises(ModelRefused, match=r"403 .*these credentials may list"):
            download_as(wrong, "private/a b", tmp_path / "wrong")


def test_without_credentials_only_public_objects_are_read(server: S3Server, tmp_path: Path) -> None:
    nobody = {"AWS_ENDPOINT_URL": server.url}
    server.make_bucket("public", {"config.json": b"{}"}, public=True)
    assert files(download_as(nobody, "public", tmp_path)) == {"config.json": b"{}"}
    with pytest.raises(ModelRefused, match=r"403 .*no credentials are set"):
        download_as(nobody, "shelf/models/tiny", tmp_path)


def test_the_signature_is_the_one_of_the_documentation() -> None:
    """AWS' own example of a listing, from its documentation of signature version 4."""
    credentials = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    headers = signed_headers(
        "examplebucket.s3.amazonaws.com",
        "/",
        {"max-keys": "2", "prefix": "J"},
        credentials,
        "us-east-1",
        datetime(2013, 5, 24, tzinfo=UTC),
    )
    assert headers["authorization"].endswith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")


def test_a_claim_is_refused_outside_of_a_fleet(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"volume claim of a cluster.*give the folder's path"):
        resolve_source(ModelSettings(uri="pvc://claim/models/x"), tmp_path, lambda share, detail: None)
