"""The numbers and names in deploy/jobset.yaml agree, and jaxdp takes its flags.

A cluster checks the structure: `kubectl apply --dry-run=server`.
"""

import pathlib
import re

import yaml

from jaxdp.cli import command_line
from jaxdp.cli.exit_codes import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.config import TrainConfig

FILE = pathlib.Path(__file__).parents[2] / "deploy" / "jobset.yaml"


def test_names_and_numbers_agree() -> None:
    manifest = yaml.safe_load(FILE.read_text())
    (workers,) = manifest["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
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
