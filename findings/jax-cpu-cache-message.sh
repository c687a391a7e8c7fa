#!/bin/sh
# Question: JAX's cache of compiled programs on a CPU. A second process on the same machine prints,
# for each program, "Machine type used for XLA:CPU compilation doesn't match the machine type for
# execution". Does it compile the programs again?
# Guess: yes, as jax issue 38445 and openxla/xla issue 44565 say: each program in the cache is
# rejected, and loading it raises an exception.
# What happens: nothing is rejected. The message is a line of a log, at the level of errors, and the
# program is loaded and runs: every lookup is a hit. XLA compares features for which LLVM tunes
# (prefer-no-gather, prefer-no-scatter) with the instructions of the processor, and no processor
# lists them.
# Seen with jax 0.10.1 and 0.9.1 on an AMD EPYC of 2024 (Zen 5); issue 38445 has the same lines from
# an Intel Cascade Lake. jax 0.10.2 prints nothing. A processor for which LLVM does not choose these
# features prints nothing with any version, and this script then fails.
# Why it matters: a training run whose start is slow seems to have found its cause, and turning off
# the cache would make each start slow.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check jax==0.10.1 jaxlib==0.10.1 \
    numpy==2.4.6 scipy==1.17.1
cat >find.py <<'END'
import collections

import jax
import jax.numpy as jnp

jax.config.update("jax_compilation_cache_dir", "cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
step = jax.jit(lambda x: jnp.tanh(x) @ x)
print(f"jax {jax.__version__}, result {float(step(jnp.eye(8))[0, 0]):.4f}")
print(f"{events['cache_misses']} programs compiled, {events['cache_hits']} loaded from the cache")
END
export JAX_PLATFORMS=cpu
for process in first second; do
    echo "$process process"
    venv/bin/python find.py 2>log
    if grep -q "doesn't match the machine type for execution" log; then
        echo "messages: the machine type does not match"
    else
        echo "no message"
    fi
done >seen
cat seen
diff - seen <<'END'
first process
jax 0.10.1, result 0.7616
9 programs compiled, 0 loaded from the cache
no message
second process
jax 0.10.1, result 0.7616
0 programs compiled, 9 loaded from the cache
messages: the machine type does not match
END
