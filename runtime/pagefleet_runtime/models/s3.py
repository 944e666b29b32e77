"""Models in S3 buckets: the files below a prefix, downloaded into the cache, taken up where an earlier try ended."""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pagefleet_contract.capacity import describe_bytes
from pagefleet_contract.names import ENV_CACHE
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.cache import make_once
from pagefleet_runtime.models.s3_client import Bucket, S3Access, S3Failure, S3Object

# Told of the share that is there, and of the same in words.
Progress = Callable[[float, str], None]

# Pickle files are not even downloaded.
_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.gguf")
_NUM_CONNECTIONS = 8
_UNFINISHED = ".unfinished"


def download_prefix(reference: str, cache: Path, access: S3Access, progress: Progress) -> Path:
    """Return the folder, or the GGUF file, that `BUCKET[/PREFIX]` names, as it is in the bucket now.

    Raises ModelRefused.
    """
    name, _, prefix = reference.partition("/")
    at = f"s3://{reference}"
    if not name:
        raise ModelRefused(f"{at} names no bucket; write s3://BUCKET/PREFIX")
    bucket = Bucket(name, access)
    try:
        found = _files(bucket, prefix, at)
        target = cache / "s3" / name / _version(access, prefix, found)
        make_once(target, lambda folder: _download(bucket, prefix, found, folder, progress), resumes=True)
    except S3Failure as failure:
        raise ModelRefused(f"{at}: {failure}{_hint(failure, access)}") from failure
    except OSError as error:
        raise ModelRefused(f"{at} can't be kept in {cache}: {error}; free space there, or set {ENV_CACHE}") from error
    single = [one for one in found if one.key == prefix]
    return target / PurePosixPath(prefix).name if single else target


def _files(bucket: Bucket, prefix: str, at: str) -> list[S3Object]:
    """Return the files of the model: the object of that very name, or what lies in the folder of that name."""
    if prefix.endswith(".gguf"):
        found = [one for one in bucket.objects(prefix) if one.key == prefix]
    else:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        found = [one for one in bucket.objects(folder) if not one.key.endswith("/")]
    kept = [one for one in found if any(fnmatch(one.key, pattern) for pattern in _PATTERNS)]
    if not kept:
        others = ", ".join(PurePosixPath(one.key).name for one in found[:10]) or "nothing"
        raise ModelRefused(
            f"{at} has no files of a model; it holds {others}; expected config.json with .safetensors files and a "
            "tokenizer, or a .gguf file"
        )
    return kept


def _version(access: S3Access, prefix: str, found: Sequence[S3Object]) -> str:
    """Return a name that changes when any of the files does."""
    told = [access.endpoint or "", prefix, *(f"{one.key} {one.size_bytes} {one.etag}" for one in found)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:24]


def _download(bucket: Bucket, prefix: str, found: Sequence[S3Object], folder: Path, progress: Progress) -> None:
    meter = _Meter(sum(one.size_bytes for one in found), progress)
    paths = {one: folder / _relative(one.key, prefix) for one in found}
    with ThreadPoolExecutor(_NUM_CONNECTIONS, thread_name_prefix="s3") as threads:
        files = [threads.submit(_download_file, bucket, one, path, meter) for one, path in paths.items()]
        try:
            for file in as_completed(files):
                file.result()
        except BaseException:
            meter.stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _relative(key: str, prefix: str) -> Path:
    below = prefix.rstrip("/")
    relative = PurePosixPath(key).name if key == prefix else key[len(below) :].lstrip("/")
    if any(part in ("", ".", "..") for part in relative.split("/")):
        raise ModelRefused(f"the object {key!r} has a name that can't be a file's; rename it in the bucket")
    return Path(relative)


def _download_file(bucket: Bucket, wanted: S3Object, path: Path, meter: "_Meter") -> None:
    """Write the file, which has its name once it is whole."""
    if path.is_file():
        meter.add(wanted.size_bytes)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + _UNFINISHED)
    with unfinished.open("ab") as file:
        offset = file.tell()
        meter.add(offset)
        for chunk in bucket.read(wanted, offset):
            if meter.stop.is_set():
                return
            file.write(chunk)
            meter.add(len(chunk))
    os.replace(unfinished, path)


class _Meter:
    """Counts bytes from several threads, and tells of each percent."""

    def __init__(self, total_bytes: int, progress: Progress) -> None:
        self._total_bytes = total_bytes
        self._progress = progress
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._told_percent = -1
        self.stop = threading.Event()  # another file has failed

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes
            share = self._done_bytes / self._total_bytes if self._total_bytes else 1.0
            if int(share * 100) > self._told_percent:
                self._told_percent = int(share * 100)
                self._progress(share, f"{describe_bytes(self._done_bytes)} of {describe_bytes(self._total_bytes)}")


def _hint(failure: S3Failure, access: S3Access) -> str:
    if failure.status in (401, 403):
        if access.credentials is None:
            return "; no credentials are set: give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return "; check that these credentials may list the bucket and get its objects"
    if failure.code == "NoSuchBucket":
        return "; check the bucket's name, and AWS_REGION or AWS_ENDPOINT_URL"
    if failure.status == 412:
        return "; the file was replaced while it was downloaded: start again"
    if failure.status is None:
        return "; check the network, and AWS_REGION or AWS_ENDPOINT_URL"
    return ""
