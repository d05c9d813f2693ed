"""The Kubernetes form of a cluster: what the operator takes, and a topology that fits what the pods
offer.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from rmq_ray.cli import nodes
from rmq_ray.cli.main import main
from rmq_ray.topology.reader import parse_topology

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kuberay"
SCHEMA = json.loads((FOLDER / "raycluster.schema.json").read_text())
SMALL = {
    kind: json.loads((FOLDER / f"{kind.lower()}.schema.json").read_text())
    for kind in ("RayJob", "PodDisruptionBudget")
}

STARTS_AND_RAY_STOPS_S = 50
"""The command joins Ray first; behind it Ray waits up to 30 s for what still runs, and ends."""


def documents() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    text = "\n---\n".join(
        (FOLDER / name).read_text() for name in ("raycluster.yaml", "rayjob.yaml")
    )
    for document in yaml.safe_load_all(text):
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
        lambda spec: spec["workerGroupSpecs"][0]["labels"].update(store="of broker-a"),
        lambda spec: spec["workerGroupSpecs"][0]["labels"].update({"store of": "broker-a"}),
        lambda spec: spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0][
            "lifecycle"
        ].update(preStop={"command": ["rmq-ray"]}),
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


def test_the_operator_takes_the_job_and_kubernetes_the_budget() -> None:
    for kind, schema in SMALL.items():
        (document,) = documents()[kind]
        jsonschema.validate(document, schema)
        for wrong in ({"spec": {}}, {"apiVersion": "v1"}, {"status": {}}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**document, **wrong}, schema)


def test_the_job_runs_what_the_image_has_in_the_cluster_that_is_there() -> None:
    job = documents()["RayJob"][0]["spec"]
    program, path = job["entrypoint"].split()
    assert program == "python" and f"COPY examples/kuberay_job.py {path}\n" in (
        FOLDER / "Dockerfile"
    ).read_text(encoding="utf-8")
    (cluster,) = documents()["RayCluster"]
    assert job["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}


@pytest.mark.parametrize("file", ["Dockerfile", "raycluster.yaml"])
def test_the_image_is_built_where_the_files_are_that_it_copies(file: str) -> None:
    (line,) = [line for line in (FOLDER / file).read_text().splitlines() if "docker build" in line]
    words = line.split()
    root, context = FOLDER.parents[1], FOLDER.parents[1] / words[-1]
    assert root / words[words.index("-f") + 1] == FOLDER / "Dockerfile"
    made = words[words.index("--wheel-dir") + 1]
    for step in (FOLDER / "Dockerfile").read_text().splitlines():
        if step.startswith("COPY "):
            source = step.split()[1]
            assert source.startswith(f"{made}/") or (context / source).is_file(), source


def test_the_budget_lets_one_pod_of_the_brokers_go_and_the_pod_has_time_for_it() -> None:
    budget = documents()["PodDisruptionBudget"][0]["spec"]
    wanted = dict(budget["selector"]["matchLabels"])
    (cluster,) = documents()["RayCluster"]
    assert wanted.pop("ray.io/cluster") == cluster["metadata"]["name"], "the operator's own label"
    counted = [
        group["template"]["spec"]
        for group in groups()
        if wanted.items() <= group["template"].get("metadata", {}).get("labels", {}).items()
    ]
    assert budget["minAvailable"] == len(counted) - 1 == 1
    for spec in counted:
        (container,) = spec["containers"]
        words = container["lifecycle"]["preStop"]["exec"]["command"]
        assert words[0] == "rmq-ray"
        rest = words[1:]
        for name, command in (("node", main), ("drain", nodes.node)):
            assert rest[0] == name and name in command.list_commands(click.Context(command))
            rest = rest[1:]
        within_s = nodes.drain.make_context("drain", rest).params["within_s"]
        assert within_s + STARTS_AND_RAY_STOPS_S <= spec["terminationGracePeriodSeconds"]


def test_the_topology_names_the_labels_of_the_pods_and_each_has_its_own_disk() -> None:
    topology = parse_topology(documents()["ConfigMap"][0]["data"]["rmq.toml"])
    offered = [f"{key}={value}" for group in groups() for key, value in group["labels"].items()]
    assert sorted(set(topology.resources.values())) == sorted(offered)
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
