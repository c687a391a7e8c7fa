"""What a script does not wait for: libraries are imported where they are used."""

import subprocess
import sys

CODE = """
import sys
import jaxdp.launch
assert "jax" not in sys.modules
import jaxdp.result, jaxdp.trainer
assert not {"tensorboardX", "matplotlib", "ray"} & set(sys.modules)
"""


def test_what_is_not_used_is_not_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
