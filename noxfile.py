"""Defines the nox sessions. `nox` checks everything on a fresh machine: lint, types and layers,
then the tests on simulated devices.
"""

import os
import pathlib
import secrets
import shutil
import subprocess
import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "uv|virtualenv"
# In the user's cache, like pip's, so that another clone finds the compiled programs.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxdp-tests"


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style and import layers, without the dependencies of the package."""
    session.install(*nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "lint"))
    session.env["PYTHONPATH"] = "src"
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    session.install(".[dev]")
    session.run("pyright")


def keep_what_is_compiled(session: nox.Session) -> None:
    """Keeps compiled programs; must be called before installing.

    A second run, the second worker and the processes that tests start then find compiled programs.
    """
    session.env["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
    # If this variable is set, each process takes 3 seconds longer to import JAX.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    # As pip does. Python does not notice if a limit on file sizes, which tests of full disks set,
    # truncates bytecode.
    session.env["UV_COMPILE_BYTECODE"] = "1"


@nox.session
def tests(session: nox.Session) -> None:
    """Runs all tests except the slow tests; `nox -s tests -- -k pyramidnet` runs some."""
    keep_what_is_compiled(session)
    session.install(".[dev]")
    run_tests(session)


def run_tests(session: nox.Session) -> None:
    """Runs the tests, then the tests in 16 bits, which may require XLA flags for the whole
    process.
    """
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    session.run("pytest", "-n", "2", "--dist", "worksteal")
    session.run("pytest", "--half-precision", "-m", "half_precision and not slow")


@nox.session
def flags(session: nox.Session) -> None:
    """Chooses XLA's flags for a jaxlib on a CPU, and runs the same tests with them.

    `nox -s flags -- 0.12.0.1` writes them into src/jaxdp/runtime/cpu_flags.toml. More words go to
    benchmarks/cpu_flags.py. JAX 0.11 and newer need Python 3.12.
    """
    if not session.posargs:
        session.error("give a version of jaxlib, e.g. 0.12.0.1")
    version, *words = session.posargs
    keep_what_is_compiled(session)
    # Editable, so that the table of this checkout is the one that jaxdp reads.
    session.install("--editable", ".[dev]", f"jax=={version}", f"jaxlib=={version}")
    session.run("python", "benchmarks/cpu_flags.py", *words)
    session.posargs.clear()
    run_tests(session)


@nox.session
def newest(session: nox.Session) -> None:
    """Runs the same tests on Python 3.13 of Debian's next release, with the newest JAX."""
    if sys.version_info >= (3, 12):
        session.skip("pip installs the newest JAX for this Python: nox -s tests")
    if (
        os.getuid() != 0
        or shutil.which("apt-get") is None
        or subprocess.run(("unshare", "--mount", "true")).returncode
    ):
        session.skip(
            "NOT TESTED ON THE NEWEST JAX: it needs root, Debian's packages and mount namespaces"
        )
    if shutil.which("debootstrap") is None:
        session.run("apt-get", "update", "-q", external=True)
        session.run(
            "apt-get",
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
            "debootstrap",
            external=True,
        )
    session.run(
        "bash",
        ".ci/newest_python.sh",
        str(CACHE.with_name("jaxdp-newest-python")),
        *session.posargs,
        external=True,
    )


@nox.session
def oldest(session: nox.Session) -> None:
    """Runs the same tests with the lowest allowed versions of JAX and its libraries."""
    dependencies = nox.project.load_toml("pyproject.toml")["project"]["dependencies"]
    bounds = [
        each
        for each in dependencies
        if each.startswith(("jax>", "flax>", "optax>", "orbax-checkpoint>"))
    ]
    keep_what_is_compiled(session)
    session.install(".[dev]", *(each.replace(">=", "==") for each in bounds))
    run_tests(session)


@nox.session
def reference(session: nox.Session) -> None:
    """Compares models with PyTorch and timm, and scores of objects with StarDist and Cellpose."""
    packages = ("torch>=2.6", "timm>=1", "stardist", "cellpose", "cellseg-metrics")
    session.install(".[dev]", *packages)
    session.run("pytest", "tests/reference", *session.posargs)


@nox.session
def prepare(session: nox.Session) -> None:
    """Prepares a TensorFlow dataset, with TensorFlow, from a file that was downloaded by hand."""
    session.install(".[dev,prepare]")
    session.run("pytest", "tests/prepare", *session.posargs)


@nox.session
def slurm(session: nox.Session) -> None:
    """Runs a job on a real Slurm on this machine, which is requeued and continues.

    Installs Debian's packages for Slurm.
    """
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
    if any(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None for name in programs):
        if os.getuid() != 0 or shutil.which("apt-get") is None:
            session.skip(
                "needs Slurm and munge: install them, or run as root where there is apt-get"
            )
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        session.run("apt-get", "update", "-q", external=True, env=quiet)
        packages = ("slurmctld", "slurmd", "slurm-client", "munge")  # what slurm-wlm consists of
        session.run(
            "apt-get",
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
            *packages,
            external=True,
            env=quiet,
        )
    if os.getuid() != 0:
        session.skip("Slurm's daemons start jobs, which takes root")
    keep_what_is_compiled(session)
    session.install(".[dev]")
    session.run("pytest", "-m", "slow", "tests/slurm", *session.posargs)


@nox.session
def ray(session: nox.Session) -> None:
    """Tests workers of different speed, Ray clusters with lost nodes, and Ray Train.

    Writes the table in docs/fault-tests.md; `-- -k head` runs a part and writes nothing.
    """
    keep_what_is_compiled(session)
    session.install(".[dev]")
    words = session.posargs or ["--fault-table=docs/fault-tests.md", "--fault-table-name=ray"]
    session.run("pytest", "-m", "slow or not slow", "tests/ray", "tests/workers", *words)


@nox.session
def slow(session: nox.Session) -> None:
    """Runs tests that take minutes: accuracy, kills, long runs, the parity matrix.

    Excludes tests that have their own session.
    """
    keep_what_is_compiled(session)
    session.install(".[dev]")
    share = ["-n", "2", "--dist", "worksteal"]
    others = [
        word
        for name in ("slurm", "ray", "workers", "fuzz", "aot")
        for word in ("--ignore", f"tests/{name}")
    ]
    session.run("pytest", "-m", "slow and not random_faults", *share, *others, *session.posargs)
    session.run("pytest", "--half-precision", "-m", "half_precision and slow", *others)


@nox.session
def aot(session: nox.Session) -> None:
    """Compiles 25 steps for a TPU and 25 for a CUDA GPU, without these devices.

    The steps cover every pair of settings.

    `-- --every-step` compiles the whole product, 170 for each.
    """
    keep_what_is_compiled(session)
    # The parts of the extra cuda13 that compile. The rest runs programs.
    session.install(
        ".[dev,tpu]",
        "jax-cuda13-plugin",
        "jax-cuda13-pjrt",
        "nvidia-cuda-nvcc",
        "nvidia-cuda-crt",
        "nvidia-nvvm",
    )
    share = ["-n", "2", "--dist", "loadgroup"]  # a worker for each of the two
    session.run("pytest", "-m", "slow or not slow", "tests/aot", *share, *session.posargs)


@nox.session
def snippets(session: nox.Session) -> None:
    """Runs every program and command of README, documentation and tutorials as printed."""
    keep_what_is_compiled(session)
    session.install(".[dev]")
    words = ["-m", "slow or not slow", "tests/repository/test_snippets.py", *session.posargs]
    session.run("pytest", *words)


@nox.session
def keywords(session: nox.Session) -> None:
    """Writes src/jaxdp/config/keywords.py, the keywords of `Trainer`, from their declarations."""
    session.install(".")
    session.run("python", "docs/trainer_keywords.py")


TORCH = "torch>=2.6"
# What each file of benchmarks/ requires in addition to jaxdp, and the page with its table.
BENCHMARKS = {
    "overhead": ([], "benchmarks"),
    "predict": ([], "benchmarks"),
    "first_step": ([], "benchmarks"),
    "versus_torch": ([TORCH], "benchmarks"),
    "time_to_accuracy": ([TORCH], "benchmarks"),
    "cifar10": ([TORCH], "benchmarks"),
    "convolutions": ([TORCH], "engineering-notes"),
    "input": ([TORCH, "torchvision", "tensorflow-cpu>=2.18"], "benchmarks"),
    "throughput": ([], "benchmarks"),
    "scaling": ([], "benchmarks"),
    "input_pipeline": ([], "benchmarks"),
}


@nox.session
def bench(session: nox.Session) -> None:
    """Runs a benchmark and writes its table in docs/, e.g. `nox -s bench -- overhead`.

    More words go to the benchmark, e.g. `nox -s bench -- input --data-dir DIR`.
    """
    if not session.posargs or session.posargs[0] not in BENCHMARKS:
        session.error(f"give one of {', '.join(BENCHMARKS)}")
    name, *words = session.posargs
    packages, page = BENCHMARKS[name]
    session.install(".[dev]", *packages)
    session.run("python", f"benchmarks/{name}.py", "--write", f"docs/{page}.md", *words)


@nox.session
def experiments(session: nox.Session) -> None:
    """Runs a tiny form of every experiment, and of the benchmarks that draw a figure.

    `python experiments/scripts/NAME.py --write` runs the full experiment.
    """
    keep_what_is_compiled(session)
    session.install(".[ray,tfds]")
    scripts = (
        "benchmarks/throughput.py",
        "benchmarks/scaling.py",
        "benchmarks/input_pipeline.py",
        "experiments/scripts/unet_two_ways.py",
        "experiments/scripts/processes.py",
        "experiments/scripts/devices.py",
        "experiments/scripts/batch_norm.py",
        "experiments/scripts/uneven_workers.py",
        "experiments/scripts/small_sets.py",
    )
    for script in scripts:
        session.run("python", script, "--tiny")


@nox.session
def notebooks(session: nox.Session) -> None:
    """Runs the notebooks from a clean kernel, tiny on a CPU.

    `-- --real` runs them in full and keeps their outputs. It needs a prepared CIFAR-10.
    """
    keep_what_is_compiled(session)
    real = session.posargs == ["--real"]
    session.install(".[tfds]" if real else ".", "nbconvert", "ipykernel")
    if not real:
        session.env["JAXDP_TINY"] = "1"
    for path in sorted(pathlib.Path("experiments/notebooks").glob("*.ipynb")):
        folder = pathlib.Path(session.create_tmp(), path.stem)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(path, folder)  # a notebook's runs lie next to it
        session.run(
            "jupyter",
            "nbconvert",
            "--to",
            "notebook",
            "--execute",
            "--inplace",
            str(folder / path.name),
        )
        kept = path if real else folder / "kept.ipynb"
        session.run(
            "python", "experiments/scripts/keep_outputs.py", str(folder / path.name), str(kept)
        )


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the documentation in build/site, with warnings as errors, and opens some pages."""
    session.install(
        ".", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "docs")
    )
    session.run("mkdocs", "build", "--strict", *session.posargs)
    session.run("python", "docs/browse.py", "build/site")


@nox.session
def faults(session: nox.Session) -> None:
    """Injects kills, damaged and unwritable checkpoints, divergence and other devices.

    Writes the table in docs/fault-tests.md.
    """
    keep_what_is_compiled(session)
    session.install(".[dev]")
    # The longest tests first, one at a time for each worker.
    files = [
        "tests/promises/test_random_faults.py",
        "tests/runtime/test_process_faults.py",
        "tests/runtime/test_network.py",
        "tests/launching/test_launch.py",
        "tests/checkpoint/test_full_disk.py",
        "tests/checkpoint/test_integrity.py",
        "tests/training/test_divergence.py",
        "tests/callbacks/test_watchdog.py",
        "tests/rundir/test_run_directory.py",
    ]
    share = ["-n", "2", "--dist", "load", "--maxschedchunk", "1"]
    table = ["--faults-only", "--fault-table=docs/fault-tests.md"]
    session.run(
        "pytest",
        "-m",
        "(slow or not slow) and not random_faults",
        *share,
        *table,
        *files,
        *session.posargs,
    )


def with_seed(option: str, given: list[str]) -> list[str]:
    """Returns the words for pytest with a random seed, which pytest prints, unless a seed was
    given.
    """
    return (
        given
        if any(word.startswith(option) for word in given)
        else [f"{option}={secrets.randbelow(10**6)}", *given]
    )


@nox.session
def fuzz(session: nox.Session) -> None:
    """Tests random flags and damaged files, pictures and archives, in 1,000 cases.

    `-- --fuzz-seed=7 -k damage` tests some cases again.
    """
    keep_what_is_compiled(session)
    session.install(".[dev]")
    share = ["-n", "2", "--dist", "load", "--maxschedchunk", "1", "--fuzz-cases=1000"]
    session.run(
        "pytest", "-m", "slow", "tests/fuzz", *share, *with_seed("--fuzz-seed", session.posargs)
    )


@nox.session
def random_faults(session: nox.Session) -> None:
    """Injects 200 kills, signals, stops and full disks into a matrix of runs.

    Writes its table in docs/fault-tests.md.

    `-- -k unet` runs a part, and writes nothing.
    """
    keep_what_is_compiled(session)
    session.install(".[dev]")
    share = ["-n", "2", "--dist", "load", "--maxschedchunk", "1"]
    table = (
        []
        if session.posargs
        else ["--fault-table=docs/fault-tests.md", "--fault-table-name=random"]
    )
    seed = with_seed("--random-faults-seed", session.posargs)
    session.run(
        "pytest",
        "-m",
        "random_faults",
        "tests/promises/test_random_faults.py",
        *share,
        *table,
        *seed,
    )
