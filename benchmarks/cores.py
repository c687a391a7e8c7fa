"""Measures how long a cache line takes from the first core of this machine to the last.

A virtual machine may move its cores between chips. While they share no cache, programs whose
threads exchange data are slower, some by a third, and others are not. Linux does not show it.
"""

import ctypes
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

# Two threads write the numbers from 0 on in turns.
_SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

static _Alignas(256) atomic_long turn;
static long last;
struct side { long first; int core; };

static void *play(void *argument) {
    struct side *side = argument;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(side->core, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    for (long number = side->first; number < last; number += 2) {
        while (atomic_load(&turn) != number) {}
        atomic_store(&turn, number + 1);
    }
    return 0;
}

double nanoseconds(long turns, int first_core, int last_core) {
    struct side sides[2] = {{0, first_core}, {1, last_core}};
    pthread_t threads[2];
    struct timespec start, end;
    last = turns;
    atomic_store(&turn, 0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, play, &sides[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((end.tv_sec - start.tv_sec) * 1e9 + end.tv_nsec - start.tv_nsec) / turns;
}
"""
_TURNS = 100_000
_FARTHER = 2  # times the shortest distance: no shared cache
_PATIENCE = 1200.0  # seconds to wait or repeat in all; then speeds count wherever the cores are


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as name:
        source, library = (pathlib.Path(name, file) for file in ("cores.c", "cores.so"))
        source.write_text(_SOURCE)
        command = ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.nanoseconds.restype = ctypes.c_double
    return loaded


def distance() -> float:
    """Returns nanoseconds; 0 where there is one core, or this cannot be measured."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        return 0
    return _library().nanoseconds(ctypes.c_long(_TURNS), cores[0], cores[-1])


class Near:
    """Measures while the cores are as near as they have been before."""

    def __init__(self) -> None:
        self._shortest = distance()
        self._patience = _PATIENCE
        self._missed = 0

    def measure(self, speed: Callable[[], float]) -> float:
        """Returns the first speed before and after which the cores are near."""
        while True:
            while not (near := self._are_near()) and self._patience > 0:
                time.sleep(1)
                self._patience -= 1
            start = time.perf_counter()
            found = speed()
            if near and self._are_near():
                return found
            print(f"{found:.1f} while the cores share no cache", file=sys.stderr)
            self._patience -= time.perf_counter() - start
            if self._patience <= 0:
                self._missed += 1
                return found

    def note(self) -> str:
        """Says how many speeds count although the cores were not near, if that was measured."""
        said = f" ({self._missed} turns without a cache that the cores share)"
        return said if self._shortest else ""

    def _are_near(self) -> bool:
        measured = min(distance(), distance(), distance())  # others may interrupt a thread
        self._shortest = min(self._shortest, measured)
        return measured <= _FARTHER * self._shortest
