"""A sweep runs over the nodes of a Ray cluster, and a run whose node dies goes on elsewhere."""

import pathlib
from collections.abc import Callable

import optuna
import pytest
from ray_nodes import FLAGS, Command, Nodes, cluster

from jaxdp import sweep
from jaxdp.rundir.layout import RunDirectory


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("10.0.0.1", "must be auto or HOST:PORT of a head"),
        ("127.0.0.1:1", "cannot be reached (Connection refused)"),
    ],
)
def test_a_wrong_address_is_one_line(
    address: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main(["--grid", "seed=1", "--address", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"jaxdp.sweep: error: --address {address}: {problem}")


def train_steps(run: RunDirectory) -> list[int]:
    return [row["step"] for row in run.read("metrics.jsonl") if row["split"] == "train"]


@pytest.mark.slow
def test_a_run_whose_node_dies_goes_on_elsewhere(
    nodes: Nodes, record_fault: Callable[..., None]
) -> None:
    nodes.add()
    nodes.add()
    words = [
        *FLAGS,
        *"--steps 300 --checkpoint-every 5 --grid seed=0,1 --output out --address".split(),
        nodes.address,
    ]
    found = Command("jaxdp.sweep", *words)
    log = pathlib.Path("out/seed=1/train.log")
    found.wait_for("step 12/", file=log)
    nodes.kill(nodes.holding("seed=1"))
    found.wait_for("seed=1: node ")
    assert found.code() == 0, found.err
    assert "continuing out/seed=1 after step" in log.read_text()
    for seed in (0, 1):
        run = RunDirectory(pathlib.Path(f"out/seed={seed}"))
        assert run.is_done()
        assert train_steps(run) == [*range(1, 301)]
    assert "mean ± standard deviation over seeds" in found.out
    record_fault(
        "a node of a Ray cluster killed during a sweep",
        1,
        "the run went on elsewhere; all complete",
        0,
    )


SLOW = (
    "import time\n\nimport jaxdp\n\n\n@jaxdp.callbacks.register('slow')\nclass Slow:\n"
    "    def on_step_end(self, run, event):\n        time.sleep(0.1)\n"
)


@pytest.mark.slow
def test_a_killed_head_ends_a_search_which_continues(
    own_cluster: Nodes, record_fault: Callable[..., None]
) -> None:
    """Both runs are under way, and there is room for more, when the head dies."""
    pathlib.Path("slow.py").write_text(SLOW)
    words = [
        *FLAGS,
        *"--plugins slow.py --callbacks slow --steps 150 --checkpoint-every 5 --validation 0.1".split(),
    ]
    words += "--output out --trials 2 learning_rate=log(1e-4,1e-1) --address".split()
    own_cluster.add(num_cpus=3)
    found = Command("jaxdp.sweep", *words, own_cluster.address)
    found.wait_for("[2/2]")
    runs = [
        RunDirectory(file.parent) for file in sorted(pathlib.Path("out").glob("*/settings.yaml"))
    ]
    assert len(runs) == 2
    for run in runs:
        found.wait_for("step 12/", file=run.path / "train.log")
    own_cluster.kill_head()
    seconds = found.wait_for("the head of the cluster has not answered for 8 s")
    assert found.code(60) == 1
    last = "the head of the cluster has not answered for 8 s: start the cluster again"
    assert found.err.splitlines()[-1] == f"jaxdp.sweep: error: {last}"
    # Before the command ended.
    assert [run.read("history.jsonl")[-1]["event"] for run in runs] == ["stopped", "stopped"]
    with cluster() as other:
        other.add(num_cpus=2)
        again = Command("jaxdp.sweep", *words, other.address)
        assert again.code() == 0, again.err
    for run in runs:
        events = [(row["event"], row["step"]) for row in run.read("history.jsonl")]
        assert [name for name, _ in events] == ["started", "stopped", "resumed", "done"]
        assert events[1][1] == events[2][1] >= 12
        assert train_steps(run) == [*range(1, 151)]
    study = optuna.load_study(study_name="sweep", storage="sqlite:///out/study.db")
    assert sum(trial.state.name == "COMPLETE" for trial in study.trials) == 2
    outcome = f"noticed after {seconds:.0f} s; all runs saved; the same command continues"
    record_fault("the head of a Ray cluster killed during a search", 1, outcome, 0)


@pytest.mark.slow
def test_a_search_uses_the_room_there_is(nodes: Nodes) -> None:
    nodes.add(num_cpus=2)
    words = [
        *FLAGS,
        *"--steps 4 --validation 0.1 --output out --address".split(),
        nodes.address,
    ]
    found = Command("jaxdp.sweep", *words, "--trials", "3", "learning_rate=log(1e-4,1e-1)")
    assert found.code() == 0, found.err
    first_two, _, _ = found.err.partition(": done")
    assert "[2/3]" in first_two
    assert "[3/3]" not in first_two
    study = optuna.load_study(study_name="sweep", storage="sqlite:///out/study.db")
    assert len([trial for trial in study.trials if trial.value is not None]) == 3
