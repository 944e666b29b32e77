"""B20, the rendering: an operator of some namespaces needs no right on the cluster."""

from tests.charts.rendering import Object, of_kind, render

_CLUSTER_KINDS = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace")
_SECOND = {"crds": {"install": False}}


def _places(objects: list[Object], kind: str) -> set[tuple[str, str]]:
    return {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in of_kind(objects, kind)}


def test_b20_a_further_release_makes_nothing_for_the_whole_cluster() -> None:
    objects = render(_SECOND)
    assert [each["kind"] for each in objects if each["kind"] in _CLUSTER_KINDS] == []
    assert {each["metadata"]["namespace"] for each in objects} == {"prod"}


def test_b20_only_with_cluster_scope_has_the_operator_a_right_on_the_cluster() -> None:
    bindings = of_kind(render(), "ClusterRoleBinding")
    assert bindings == []
    (binding,) = of_kind(render({"settings": {"scope": "Cluster"}}), "ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pagefleet", "namespace": "prod"}]


def test_b20_each_watched_namespace_gets_roles_and_the_account_of_routers() -> None:
    objects = render({"settings": {"watchNamespaces": ["a", "b"]}})
    expected = {(namespace, name) for namespace in ("a", "b") for name in ("pagefleet", "pagefleet-router")}
    assert _places(objects, "Role") == {*expected, ("prod", "pagefleet-lease")}
    assert _places(objects, "RoleBinding") == {*expected, ("prod", "pagefleet-lease")}
    assert _places(objects, "ServiceAccount") == {
        ("a", "pagefleet-router"),
        ("b", "pagefleet-router"),
        ("prod", "pagefleet"),
    }
    operators = [
        subject
        for binding in of_kind(objects, "RoleBinding")
        if not binding["metadata"]["name"].endswith("router")
        for subject in binding["subjects"]
    ]
    assert {(subject["namespace"], subject["name"]) for subject in operators} == {("prod", "pagefleet")}


def test_b20_no_namespaced_role_names_what_only_the_cluster_has() -> None:
    cluster_resources = {"namespaces", "nodes", "customresourcedefinitions", "clusterroles", "persistentvolumes"}
    for role in of_kind(render({"settings": {"watchNamespaces": ["a"]}}), "Role"):
        assert not {resource for rule in role["rules"] for resource in rule["resources"]} & cluster_resources
