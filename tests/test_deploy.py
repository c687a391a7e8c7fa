"""deploy/jobset.yaml has the structure of a JobSet, its numbers agree, and jaxdp takes its flags.

The structure is written down here by hand from the types of JobSet v1alpha2 and batch/v1, for the
keys that the file uses: it finds a misspelt, misplaced or mistyped key, and does not stand for a
cluster's own check (`kubectl apply --dry-run=server`).
"""

import copy
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from jaxdp import command_line
from jaxdp.config import TrainConfig
from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USAGE_ERROR

FILE = pathlib.Path(__file__).parents[1] / "deploy" / "jobset.yaml"
# A type, a set of allowed values, a dict of structures by key, or a list of one structure.
Structure = Any
CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str], "ports": [{"containerPort": int}],
    "env": [{"name": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "resources": {"limits": {"nvidia.com/gpu": int}},
    "volumeMounts": [{"name": str, "mountPath": str}],
}  # fmt: skip
POD = {
    "restartPolicy": {"Never"}, "terminationGracePeriodSeconds": int, "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
}  # fmt: skip
EXIT_CODES = {"containerName": str, "operator": {"In", "NotIn"}, "values": [int]}
JOB = {
    "parallelism": int,
    "completions": int,
    "completionMode": {"Indexed"},
    "backoffLimit": int,
    "podFailurePolicy": {
        "rules": [{"action": {"FailJob", "Ignore", "Count"}, "onExitCodes": EXIT_CODES}]
    },
    "template": {"spec": POD},
}
FAILURE_RULE = {
    "name": str,
    "action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
    "onJobFailureReasons": [str],
}
JOBSET = {
    "apiVersion": {"jobset.x-k8s.io/v1alpha2"},
    "kind": {"JobSet"},
    "metadata": {"name": str},
    "spec": {
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": {"Recreate", "BlockingRecreate"},
            "rules": [FAILURE_RULE],
        },
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": JOB}}],
    },
}


def check(value: Any, structure: Structure, path: str = "") -> None:
    if isinstance(structure, dict):
        assert isinstance(value, dict), f"{path} is not a mapping"
        assert value.keys() == structure.keys(), (
            f"{path}: {sorted(value.keys() ^ structure.keys())}"
        )
        for key, part in value.items():
            check(part, structure[key], f"{path}.{key}")
    elif isinstance(structure, list):
        assert isinstance(value, list), f"{path} is not a list"
        assert value, f"{path} is empty"
        for index, part in enumerate(value):
            check(part, structure[0], f"{path}[{index}]")
    elif isinstance(structure, set):
        assert value in structure, f"{path} is {value!r}"
    else:
        assert type(value) is structure, f"{path} is {value!r}"


@pytest.fixture
def manifest() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def job_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (workers,) = manifest["spec"]["replicatedJobs"]
    return workers["template"]["spec"]


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = job_of(manifest)["template"]["spec"]["containers"]
    return container


def test_structure(manifest: dict[str, Any]) -> None:
    check(manifest, JOBSET)


MISTAKES: list[Callable[[dict[str, Any]], Any]] = [
    lambda found: job_of(found).update(parallelism="2"),
    lambda found: job_of(found).update(completionMode="NonIndexed"),
    lambda found: job_of(found).update(restartPolicy="Never"),  # belongs to the pod
    lambda found: job_of(found)["template"]["spec"].pop("restartPolicy"),
    lambda found: container_of(found).update(args=["--process-id", 1]),
    lambda found: found["spec"]["failurePolicy"].update(
        maxRestart=found["spec"]["failurePolicy"].pop("maxRestarts")
    ),
]


@pytest.mark.parametrize("spoil", MISTAKES)
def test_the_check_finds_mistakes(
    spoil: Callable[[dict[str, Any]], Any], manifest: dict[str, Any]
) -> None:
    spoiled = copy.deepcopy(manifest)
    spoil(spoiled)
    with pytest.raises(AssertionError):
        check(spoiled, JOBSET)


def test_names_and_numbers_agree(manifest: dict[str, Any]) -> None:
    job, container = job_of(manifest), container_of(manifest)
    (workers,) = manifest["spec"]["replicatedJobs"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert workers["replicas"] == 1
    assert job["backoffLimit"] == 0
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert set(rule["onExitCodes"]["values"]) == {EXIT_USAGE_ERROR, EXIT_DIVERGED}
    assert EXIT_STOPPED not in rule["onExitCodes"]["values"]
    volumes = {volume["name"] for volume in job["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes

    # Kubernetes puts the pod's variables in; JobSet names pods JOBSET-JOBS-INDEX-POD and their
    # network like the JobSet.
    given = {variable["name"] for variable in container["env"]} | {"JOB_COMPLETION_INDEX"}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) == given
    name, last = manifest["metadata"]["name"], job["completions"] - 1
    words = [
        word.replace("$(JOBSET_NAME)", name).replace("$(JOB_COMPLETION_INDEX)", str(last))
        for word in container["args"]
    ]
    assert container["command"] == ["python", "-m", "jaxdp.train"]
    config = command_line.parse(TrainConfig, words, prog="python -m jaxdp.train", description="")
    port = container["ports"][0]["containerPort"]
    assert config.coordinator == f"{name}-{workers['name']}-0-0.{name}:{port}"
    assert config.num_processes == job["parallelism"] == job["completions"]
    assert config.process_id == last
    assert config.run_dir is not None
    assert config.run_dir.startswith(container["volumeMounts"][0]["mountPath"] + "/")
