"""Mount paths become folders and Services' names addresses, where they stand as a whole and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_local.node.rewriting import under_mount_root, with_addresses, with_folders

FOLDERS = {
    "/pagefleet/config": "/s/config",
    "/pagefleet/model": "/s/model",
    "/pagefleet/model/deep": "/s/deep",
    "/pagefleet/live": "/s/live",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/pagefleet/config", "/s/config"),
        ("/pagefleet/config/engine.json", "/s/config/engine.json"),
        ("--config=/pagefleet/config/engine.json", "--config=/s/config/engine.json"),
        ("file:///pagefleet/model/x", "file:///s/model/x"),
        ("file:/pagefleet/model", "file:/s/model"),
        ("/pagefleet/model/deep/x", "/s/deep/x"),
        ("/pagefleet/config:/pagefleet/model", "/s/config:/s/model"),
        ('{"path": "/pagefleet/live"}', '{"path": "/s/live"}'),
        ("cat /pagefleet/live/a && ls '/pagefleet/live'", "cat /s/live/a && ls '/s/live'"),
        # Not the mount: another name, a part of a longer path, a path of a server.
        ("/pagefleet/model.bin", "/pagefleet/model.bin"),
        ("/pagefleet/models", "/pagefleet/models"),
        ("/srv/pagefleet/model", "/srv/pagefleet/model"),
        ("http://host:8000/pagefleet/live", "http://host:8000/pagefleet/live"),
        ("http://host/pagefleet/live", "http://host/pagefleet/live"),
        ("/pagefleet/v1/state", "/pagefleet/v1/state"),
        ("http:///pagefleet/live", "http:///pagefleet/live"),
        ("./pagefleet/model", "./pagefleet/model"),
        ("../pagefleet/model", "../pagefleet/model"),
    ],
)
def test_a_mount_path_is_replaced_where_it_is_the_whole_path_so_far(text: str, expected: str) -> None:
    assert with_folders(text, FOLDERS) == expected


@given(st.text(alphabet="/pagefltmodcni.:= -", max_size=40))
def test_text_that_names_no_mount_stays(text: str) -> None:
    if not any(path in text for path in FOLDERS):
        assert with_folders(text, FOLDERS) == text


@given(st.lists(st.sampled_from([*FOLDERS, "x", "--a=", "http://h"]), max_size=5))
def test_what_is_rewritten_once_is_not_rewritten_again(parts: list[str]) -> None:
    once = with_folders(" ".join(parts), FOLDERS)
    assert with_folders(once, FOLDERS) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://chat.prod.svc:8000/v1", "http://127.64.0.9:8000/v1"),
        ("chat.prod.svc.cluster.local", "127.64.0.9"),
        ("chat.prod.svc.cluster.local.", "127.64.0.9"),
        ("a,chat.prod.svc,b", "a,127.64.0.9,b"),
        ("other.prod.svc:8000", "other.prod.svc:8000"),
        ("my.chat.prod.svc", "my.chat.prod.svc"),
        ("chat.prod.svcs", "chat.prod.svcs"),
        ("chat.prod", "chat.prod"),
    ],
)
def test_the_name_of_a_service_becomes_its_address(text: str, expected: str) -> None:
    def address_of(namespace: str, name: str) -> str | None:
        return "127.64.0.9" if (namespace, name) == ("prod", "chat") else None

    assert with_addresses(text, address_of) == expected


@pytest.mark.parametrize(
    ("path", "expected"), [("/pagefleet", True), ("/pagefleet/x", True), ("/pagefleets", False), ("/tmp", False)]
)
def test_the_mount_root_is_a_folder_and_not_a_prefix(path: str, expected: bool) -> None:
    assert under_mount_root(path) is expected
