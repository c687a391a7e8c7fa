"""Data-parallel training of image models in JAX. Start with `python -m jaxdp.train --model pyramidnet`."""

from importlib.metadata import version

__version__ = version("jaxdp")
