"""Provides the callbacks, one file each, which show, record, save or steer a run.

A callback is an object with any of the methods in `HOOKS`, for example

    class PrintLoss:
        def on_evaluate(self, run, event):
            print(event.step, event.metrics["loss"])

Each takes the run (`events.Run`) and an event; `on_row` takes the run and the row of metrics that
it may add fields to. Where several processes train, a callback is called in the first one only,
unless it says `every_process = True`. A callback that keeps a state across restarts has
`state_dict()`, of plain JSON values, and `load_state_dict(state)`. The latter is called before
`on_start`, and only with what `state_dict` returned. `close()` is called at the end, whatever ends
the run. One that only draws or logs says `only_reports = True`: if it raises, it is left out with a
warning, and the run goes on. Register a class with `@callbacks.register("name")` to use it as
`--callbacks name:keyword=value`.
"""

from jaxdp.callbacks.callback import HOOKS, Callback, create, names, register
from jaxdp.callbacks.callback_list import CallbackError, CallbackList
from jaxdp.callbacks.device_monitor import DeviceMonitor
from jaxdp.callbacks.early_stopping import EarlyStopping
from jaxdp.callbacks.json_lines import JsonLines
from jaxdp.callbacks.progress import Progress
from jaxdp.callbacks.tensorboard import TensorBoard
from jaxdp.callbacks.wandb import WandB

__all__ = [
    "HOOKS",
    "Callback",
    "CallbackError",
    "CallbackList",
    "DeviceMonitor",
    "EarlyStopping",
    "JsonLines",
    "Progress",
    "TensorBoard",
    "WandB",
    "create",
    "names",
    "register",
]
