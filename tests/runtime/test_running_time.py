"""A pause of a process (SIGSTOP, a suspended machine) uses up none of its limits of time."""

import signal
import subprocess
import sys
import time

import pytest

HEAD = """
import sys, threading, time
from jaxdp.runtime import ray_cluster
from jaxdp.runtime.ray_connection import HeadLost
ray_cluster.SILENCE_SECONDS = 2.5
answers = threading.Event()
answers.set()
def nodes():
    time.sleep(0.2)  # whoever looks right after the pause looks before the answer
    answers.wait()
    return []
ray_cluster.nodes = nodes
head = ray_cluster.Head()
print("ready", flush=True)
for _ in range(30):
    time.sleep(0.05)
    head.check()
answers.clear()  # an answer that does not come is silence
began = time.monotonic()
try:
    while time.monotonic() < began + 10:
        time.sleep(0.05)
        head.check()
except HeadLost:
    print("lost" if time.monotonic() > began + 1 else "too soon")
"""

SUPERVISOR = """
import sys, time
from jaxdp.launching.supervisor import Supervisor
class Counted:
    where = "here"
    def __init__(self, polls, code):
        self.polls, self.code = polls, code
    def poll(self):
        self.polls -= 1
        return self.code if self.polls < 0 else None
    def lines(self):
        return []
    def send_signal(self, number):
        print(f"signal {number:d}")
        self.polls = 0
    def close(self):
        pass
print("ready", flush=True)
for polls in (30, 10**6):  # the second one hangs
    Supervisor([Counted(0, 1), Counted(polls, 0)], 3.0).wait([])
    print("ended", flush=True)
"""

POOL = """
import time
from types import SimpleNamespace
from unittest.mock import MagicMock
from jaxdp.workers import pool
pool._FIRST_WORKER_SECONDS = 3.0
ray = MagicMock()
ray.available_resources.return_value = {"CPU": 0}
def wait(refs, **options):
    time.sleep(0.05)
    return [], refs
ray.wait = wait
spec = SimpleNamespace(config=SimpleNamespace(precision="float32"))
workers = pool.Pool(ray, spec, 1, MagicMock(), None)
print("ready", flush=True)
for _ in range(30):
    workers.poll()
print("waits", flush=True)
try:
    while True:
        workers.poll()
except pool.WorkersLost:
    print("lost")
"""

COORDINATOR = """
import socket, threading, time
from jaxdp.runtime.coordinator import unreachable
held = socket.socket()
held.bind(("127.0.0.1", 0))
def listen():
    for _ in range(30):
        time.sleep(0.05)
    held.listen()
threading.Thread(target=listen).start()
print("ready", flush=True)
print(repr(unreachable(held.getsockname(), 4.0)))
"""


@pytest.mark.fault(
    "the launcher or the driver of workers is paused (SIGSTOP, or the machine is suspended)",
    "goes on; the time does not count",
    None,
)
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (HEAD, ["lost"]),
        (SUPERVISOR, ["ended", f"signal {signal.SIGKILL:d}", "ended"]),
        (POOL, ["waits", "lost"]),
        (COORDINATOR, ["''"]),
    ],
    ids=["head of a Ray cluster", "supervisor", "workers", "coordinator"],
)
def test_a_pause_uses_up_no_limit(program: str, printed: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        output, errors = process.communicate(timeout=40)
    assert output.splitlines() == printed, errors
    assert process.returncode == 0, errors
