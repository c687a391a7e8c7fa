"""What a script does not wait for: libraries are imported where they are used, and PyTorch not at
all.
"""

import pathlib
import subprocess
import sys

CODE = """
import pathlib, sys, types
import jaxdp.sweep
assert "jax" not in sys.modules
import jaxdp.result, jaxdp.trainer
assert not {"tensorboardX", "matplotlib"} & set(sys.modules)
from jaxdp.callbacks.tensorboard import TensorBoard
TensorBoard().on_start(types.SimpleNamespace(folder=pathlib.Path("run")), types.SimpleNamespace(step=0))
assert "tensorboardX" in sys.modules and "torch" not in sys.modules
import torch
print(torch.found)
"""


def test_torch_is_hidden_from_tensorboardx_and_from_nobody_else(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text("Tensor = int\nfound = True\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert any((tmp_path / "run" / "tensorboard").iterdir())
