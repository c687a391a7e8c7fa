"""Finds the version of jaxdp that runs."""

import importlib.metadata


def version() -> str:
    """Returns the version, or `unknown` if jaxdp runs from its source and is not installed."""
    try:
        return importlib.metadata.version("jaxdp")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
