"""Processes read the same batches as threads, end with the run that they read for, and say what
went wrong in them.
"""

import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from example_files import bad_example, refused, skipped
from numpy.testing import assert_array_equal

import jaxdp
from jaxdp.data import pipeline
from jaxdp.data.reading_processes import ReadingProcesses
from jaxdp.data.sources import BadExample, Dataset, Split
from jaxdp.plugins import load_plugins
from jaxdp.registry import ConfigError

Read = Callable[[int], None]


def made(
    count: int, act: Read = lambda index: None, *, processes: bool = True, several: bool = False
) -> Any:
    """Returns a source that does something before it reads an example.

    Its class is not in a module that can be imported.
    """

    class Mine:
        reads_in_processes = processes

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, Any]:
            act(index)
            pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 1), np.uint8)
            return {"images": pixels, "labels": index % 2}

    class Several(Mine):
        def __getitems__(self, numbers: list[int]) -> Iterator[dict[str, Any]]:
            return map(self.__getitem__, numbers)

    return Several() if several else Mine()


def dataset(source: Any) -> Dataset:
    facts: dict[str, Any] = {"num_classes": 2, "image_shape": (8, 8, 1)}
    return Dataset(source, made(4), mean=(127.0,), std=(70.0,), **facts)


def checked(source: Any, *, skip: bool = False) -> Split:
    return Split(source, dataset(source), where="mine", skip=skip)


def read(source: Split, count: int = 1) -> list[dict[str, np.ndarray]]:
    with ReadingProcesses({"train": source}) as processes:
        reader = processes.reader("train", count)
        assert reader is not None
        order = pipeline.TrainingOrder(len(source), 6, 1, 5)
        load = functools.partial(pipeline.load, source.read_by(reader))
        return list(pipeline.batches(load, order, lambda batch: batch, threads=count, paired=True))


def bad(index: int) -> None:
    if index % 5 == 3:
        raise BadExample(f"file {index}", "is truncated")


def alive(process: int) -> bool:
    try:
        return "Z" not in pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("count", [1, 3])
def test_processes_read_what_threads_read(count: int) -> None:
    source = checked(made(17))
    order = pipeline.TrainingOrder(17, 6, 1, 5)
    expected = list(
        pipeline.batches(
            functools.partial(pipeline.load, source), order, lambda batch: batch, paired=True
        )
    )
    for batch, found in zip(expected, read(source, count), strict=True):
        assert {name: values.dtype for name, values in batch.items()} == {
            name: values.dtype for name, values in found.items()
        }
        for name, values in batch.items():
            assert_array_equal(values, found[name])


def test_a_run_is_the_same_and_leaves_no_process(tmp_path: pathlib.Path) -> None:
    parent = os.getpid()

    def note(index: int) -> None:
        pathlib.Path(tmp_path, f"{os.getpid()} {'jax' in sys.modules}").touch()
        if os.getpid() != parent:
            time.sleep(0.02)  # else one process may read all before the other has started

    losses: list[Any] = []
    for processes, workers in ((False, 2), (True, 2), (True, 1)):
        data = dataset(made(24, note, processes=processes))
        trainer = jaxdp.Trainer(
            "cnn",
            data,
            epochs=2,
            global_batch_size=8,
            strategy="single",
            data_placement="host",
            data_workers=workers,
            eval_every=1,
            progress=False,
        )
        result = trainer.fit()
        losses.append([row["loss"] for row in result.history])
        found = {
            int(name): imported == "True"
            for name, imported in (path.name.split() for path in tmp_path.iterdir())
        }
        others = [process for process in found if process != os.getpid()]
        assert len(others) == (workers if processes else 0)  # also for six evaluations
        assert not any(alive(process) or found[process] for process in others)
        if processes:
            for path in tmp_path.iterdir():
                path.unlink()
    assert losses[0] == losses[1] == losses[2]


def test_what_the_devices_hold_is_read_by_processes_that_end(tmp_path: pathlib.Path) -> None:
    source = made(24, lambda index: pathlib.Path(tmp_path, str(os.getpid())).touch())
    setup = jaxdp.Trainer(
        "cnn", dataset(source), global_batch_size=8, strategy="single", data_placement="device"
    ).setup
    assert len(setup.train_data["labels"]) == 24
    others = [int(path.name) for path in tmp_path.iterdir() if path.name != str(os.getpid())]
    assert others
    assert not any(map(alive, others))


@pytest.mark.parametrize("several", [True, False])
def test_a_bad_example_is_counted_where_the_run_is(several: bool) -> None:
    source = checked(made(20, bad, several=several), skip=True)
    found = read(source)
    weights = {
        int(number): weight
        for batch in found
        for number, weight in zip(batch["indices"], batch["weights"], strict=True)
    }
    assert (
        {number for number, weight in weights.items() if weight == 0}
        == set(skipped(source))
        == {3, 8, 13, 18} & set(weights)
    )
    assert skipped(source)[3] == "file 3: is truncated"
    with bad_example(r"file \d+: is truncated; .*on_bad_example skip"):
        read(checked(made(20, bad, several=several)))


def test_a_source_of_nothing_but_bad_examples_is_an_error() -> None:
    def all_bad(index: int) -> None:
        raise BadExample(f"file {index}", "is truncated")

    with refused(r"nothing is left of mine: none of its 6 examples .* truncated"):
        read(checked(made(6, all_bad), skip=True))


def test_an_exception_keeps_its_message_and_where_it_was_raised() -> None:
    class Two(Exception):
        def __init__(self, one: str, other: str) -> None:
            super().__init__(f"{one} and {other}")

    def raises(error: Callable[[], BaseException]) -> Any:
        def act(index: int) -> None:
            raise error()

        return checked(made(6, act))

    with pytest.raises(RuntimeError, match="KeyError: 'no such column'") as found:
        read(raises(lambda: KeyError("no such column")))
    assert "in __getitem__" in str(found.value.__cause__)
    with pytest.raises(RuntimeError, match="Two: this and that"):
        read(raises(lambda: Two("this", "that")))
    with refused("seed=3: is odd") as wrong:
        read(raises(lambda: ConfigError("seed", 3, "is odd")))
    assert wrong.value.field == "seed"
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        read(raises(lambda: SystemExit(3)))


def test_a_process_that_is_killed_ends_the_run_with_one_line() -> None:
    def die(index: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    says = r"^a process that reads examples has ended; memory .* fewer data_workers"
    with refused(says):
        read(checked(made(12, die)))
    with refused(says):
        read(checked(made(12, lambda index: os._exit(7))))


def test_a_source_that_cannot_be_pickled_is_found_before_anything_is_read(
    tmp_path: pathlib.Path,
) -> None:
    source = made(12, lambda index: pytest.fail("was read"))
    with (
        pathlib.Path(tmp_path, "file").open("wb") as source.handle,
        refused(r"^train: is read in processes, but cannot be pickled: .*__getstate__"),
    ):
        jaxdp.Trainer("cnn", dataset(source), progress=False)


def test_a_class_of_a_plugin_s_file_is_sent_with_its_code(
    tmp_path: pathlib.Path, registries: None
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine(list):\n    reads_in_processes = True\n    def __getitem__(self, index): return"
        " double(index)\n"
    )
    file.write_text(file.read_text() + "def double(index): return {'labels': 2 * index}\n")
    load_plugins([str(file)])
    with ReadingProcesses({"train": checked(sys.modules[str(file)].Mine())}) as processes:
        reader = processes.reader("train", 1)
        assert reader is not None
        assert reader([3, 4]) == [{"labels": 6}, {"labels": 8}]


# A class of the script, which each process imports.
_SCRIPT = """
import multiprocessing, os, pathlib, time
import numpy as np
import jaxdp

class Mine:
    reads_in_processes = True

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if multiprocessing.parent_process():
            pathlib.Path(f"{os.getpid()}.process").touch()
        time.sleep(0.02)
        return {"images": np.full((8, 8, 1), index, np.uint8), "labels": index % 2}

if __name__ == "__main__":
    print("runs", flush=True)
    data = jaxdp.data.Dataset(Mine(), Mine(), num_classes=2, image_shape=(8, 8, 1), mean=(8.0,), std=(5.0,))
    result = jaxdp.Trainer("cnn", data, epochs=200, global_batch_size=8, data_placement="host", data_workers=2, progress=False).fit()
    print("ended", len(result.history))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_or_a_kill_ends_them_without_a_word(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    pathlib.Path(tmp_path, "mine.py").write_text(_SCRIPT)
    source = str(pathlib.Path(jaxdp.__file__).parents[1])
    run = subprocess.Popen(
        [sys.executable, "mine.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        process_group=0,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert wait_until(lambda: run.poll() is not None or len(list(tmp_path.glob("*.process"))) == 2)
    if number == signal.SIGINT:
        time.sleep(2)  # to the first steps
        os.killpg(run.pid, number)
    else:
        run.kill()
    output, _ = run.communicate(timeout=60)
    others = [int(path.stem) for path in tmp_path.glob("*.process")]
    assert len(others) == 2
    assert wait_until(lambda: not any(map(alive, others)), 10)
    # Grain says it of JAX 0.10.0.
    words = re.sub(r"WARNING.*requires jaxlib.*\n", "", output).split()
    assert words[0] == "runs"
    assert words.count("runs") == 1
    assert "Traceback" not in output
    assert (words[1:2] == ["ended"]) == (number == signal.SIGINT), output
