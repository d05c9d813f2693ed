"""The Kubernetes form of a cluster: what the operator takes, and a topology that fits what the pods
offer.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rmq_ray.topology.reader import parse_topology

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kuberay"
SCHEMA = json.loads((FOLDER / "raycluster.schema.json").read_text())


def documents() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all((FOLDER / "raycluster.yaml").read_text()):
        found.setdefault(document["kind"], []).append(document)
    return found


def groups() -> list[dict[str, Any]]:
    spec = documents()["RayCluster"][0]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_the_operator_takes_the_cluster() -> None:
    assert not [
        error.message
        for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(
            documents()["RayCluster"][0]
        )
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(replicas=1),
        lambda spec: spec["workerGroupSpecs"][0].pop("groupName"),
        lambda spec: spec["workerGroupSpecs"][0]["rayStartParams"].update(
            resources={"store_broker_a": 1}
        ),
        lambda spec: spec["headGroupSpec"]["template"]["spec"]["containers"][0].update(
            volumeMount=[]
        ),
        lambda spec: spec["gcsFaultToleranceOptions"].update(backend="etcd"),
    ],
)
def test_the_schema_sees_what_the_operator_would_refuse(change: Any) -> None:
    cluster = copy.deepcopy(documents()["RayCluster"][0])
    change(cluster["spec"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, SCHEMA)


def test_the_topology_names_the_resources_of_the_pods_and_each_has_its_own_disk() -> None:
    topology = parse_topology(documents()["ConfigMap"][0]["data"]["rmq.toml"])
    offered = [json.loads(json.loads(group["rayStartParams"]["resources"])) for group in groups()]
    assert sorted(set(topology.resources.values())) == sorted(
        name for resources in offered for name in resources
    )
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for group in groups()
        for volume in group["template"]["spec"]["volumes"]
        if "configMap" not in volume
    ]
    assert (
        sorted(claims)
        == sorted(claim["metadata"]["name"] for claim in documents()["PersistentVolumeClaim"])
        and len(set(claims)) == 3
    )
    for group in groups():
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "RAY_worker_niceness", "value": "0"} in container["env"]
        (data,) = [
            mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"
        ]
        assert all(
            path.startswith(f"{data}/")
            for path in [
                topology.controller.ledger,
                *(spec.config.store.path for spec in topology.copies),
            ]
        )


def test_no_pod_has_two_copies_of_a_broker() -> None:
    topology = parse_topology(documents()["ConfigMap"][0]["data"]["rmq.toml"])
    assert [spec.actor for spec in topology.copies] == [
        "broker-a",
        "broker-a/1",
        "broker-b",
        "broker-b/1",
    ]
    assert all(
        spec.resource != copy.resource and not spec.allow_same_node
        for spec in topology.brokers
        for copy in spec.replicas
    )
