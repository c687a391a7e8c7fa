"""One program for the whole batch, which XLA divides over a named mesh: it inserts the communication itself."""

import functools

import jax

from jaxdp.parallel import mesh, strategy
from jaxdp.parallel.replicas import Replicas
from jaxdp.training import step


@strategy.register("sharded")
class Sharded(strategy.Strategy):
    """Parameters are replicated."""

    name = "sharded"

    def _build(self) -> None:
        kwargs = {"recipe": self.recipe, "replicas": Replicas(per_program=self.num_devices)}
        everywhere, split = mesh.replicated(self.mesh), mesh.split_over_data(self.mesh)
        wrap = functools.partial(jax.jit, in_shardings=(everywhere, split, everywhere), out_shardings=everywhere)
        self.train_step = wrap(functools.partial(step.train_step, **kwargs), donate_argnums=0)
        self.eval_step = wrap(functools.partial(step.eval_step, **kwargs))

    def examples_per_program(self, global_batch_size: int) -> int:
        return global_batch_size
