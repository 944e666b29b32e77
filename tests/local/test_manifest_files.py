"""Files are read whole before a fleet is started for them."""

from pathlib import Path

import pytest

from pagefleet_local.errors import FleetError
from pagefleet_local.manifest_files import manifest_files

_SERVICE = "apiVersion: pagefleet.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: chat}\n"


def faults_of(folder: Path, **texts: str) -> list[str]:
    """Write the files, give their folder, and return what is wrong with it, the folder's name left out."""
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    with pytest.raises(FleetError) as said:
        manifest_files([str(folder)])
    return str(said.value).replace(f"{folder}/", "").splitlines()


@pytest.mark.parametrize(
    "text",
    [_SERVICE + "spec: {replicas: 2026-13-45}", _SERVICE + "spec: {replicas: !!int two}", '{\n\t"kind": "a", 1: 2}'],
    ids=["no date", "no number", "tabs"],
)
def test_what_python_cannot_read_and_kubectl_may_is_left_to_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(text)
    assert manifest_files([str(file)]) == [str(file)]


def test_a_folder_stands_for_the_manifests_in_it(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    for name in ("b.yml", "a.yaml", "notes.txt", "deeper/c.yaml"):
        (tmp_path / name).write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
    (tmp_path / "c.json").write_text('{"apiVersion": "v1", "kind": "A"}\n{"apiVersion": "v1", "kind": "B"}')
    given = ["-", "https://x/y.yaml", str(tmp_path)]
    assert manifest_files(given) == [*given[:2], *(str(tmp_path / name) for name in ("a.yaml", "b.yml", "c.json"))]


def test_all_files_are_read_and_each_fault_is_said_with_its_file(tmp_path: Path) -> None:
    assert faults_of(
        tmp_path,
        cut=_SERVICE + "spec: {model: ]}",
        empty="# nothing yet\n",
        good="---\n" + _SERVICE,
        kinds=_SERVICE.replace("Service", "Server") + "---\n" + _SERVICE.replace("v1alpha1", "v1") + "---\nspec: {}\n",
        shape="- 1\n",
        words="serve me",
    ) == [
        "cut.yaml is no YAML: line 4: did not find expected node content",
        "empty.yaml is empty; it should hold a manifest",
        "kinds.yaml, document 1 has pagefleet.dev/v1alpha1 InferenceServer; what there is of pagefleet.dev is"
        " pagefleet.dev/v1alpha1 InferenceService",
        "kinds.yaml, document 2 has pagefleet.dev/v1 InferenceService; what there is of pagefleet.dev is"
        " pagefleet.dev/v1alpha1 InferenceService",
        "kinds.yaml, document 3 is no manifest: it has no apiVersion and no kind",
        "shape.yaml is no manifest: it holds a list where apiVersion and kind should be",
        "words.yaml is no manifest: it holds 'serve me' where apiVersion and kind should be",
    ]


def test_a_folder_without_manifests_is_said(tmp_path: Path) -> None:
    assert faults_of(tmp_path) == [
        f"the folder {tmp_path} holds no manifest: no file that ends with .json, .yaml, .yml"
    ]


def test_two_services_of_one_name_are_refused_with_both_places(tmp_path: Path) -> None:
    other = _SERVICE.replace("{name: chat}", "{name: chat, namespace: other}")
    item = "{apiVersion: pagefleet.dev/v1alpha1, kind: InferenceService, metadata: {name: chat, namespace: default}}"
    assert faults_of(tmp_path, a=f"{other}---\n{_SERVICE}", b=f"{{apiVersion: v1, kind: List, items: [{item}]}}") == [
        "InferenceService chat of namespace default is both in a.yaml, document 2 and in b.yaml, item 1; rename one"
    ]


def test_a_file_that_is_named_twice_is_no_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(_SERVICE)
    assert manifest_files([str(file), str(file)]) == [str(file), str(file)]
