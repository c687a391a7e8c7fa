"""Lists names that help texts mention, from source files: imports of these would start JAX."""

import ast
import functools
import pathlib
import re

_ROOT = pathlib.Path(__file__).parents[2]
_REGISTERED = re.compile(r'^@(?:\w+\.)?register\("([^"]+)"', re.MULTILINE)
_PLACE = re.compile(r"\{(jaxdp[^}]+)\}")


def with_names(text: str) -> str:
    """Returns a text in which each {PLACE} is replaced by the names there, e.g. `a, b or c`.

    Args:
        text: its places are packages, whose modules register names, and literals, as MODULE:NAME;
            several are separated by spaces.
    """

    def names(match: re.Match[str]) -> str:
        *most, last = [name for place in match[1].split() for name in names_in(place)]
        return " or ".join(filter(None, [", ".join(most), last]))

    return _PLACE.sub(names, text)


@functools.cache
def names_in(place: str) -> list[str]:
    """Returns the names that a package registers, or the elements or keys of a literal."""
    module, _, variable = place.partition(":")
    path = _ROOT.joinpath(*module.split("."))
    if not variable:
        files = sorted(path.glob("*.py"))
        return [name for file in files for name in _REGISTERED.findall(file.read_text())]
    for statement in ast.parse(path.with_suffix(".py").read_text()).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ) if name == variable:
                keys: list[ast.expr] = getattr(value, "keys", None) or getattr(value, "elts", [])
                return [ast.literal_eval(key) for key in keys]
            case _:
                pass
    raise LookupError(place)
