"""Writes docs/settings.md: every flag and keyword, from the declarations of the settings."""

import pathlib
from collections.abc import Iterable

from jaxdp import check, convert, devices, evaluate, plan, predict
from jaxdp.config import REQUIRED, Facts, SavedRunConfig, Settings, TrainConfig, conversion, fields
from jaxdp.launching import launcher, slurm
from jaxdp.text.messages import shown

PAGE = pathlib.Path(__file__).with_name("settings.md")
HEAD = """# Settings

Every flag of `python -m jaxdp.train` is a keyword of `jaxdp.Trainer` and of `fit`, with underscores
instead of hyphens. For example, `--global-batch-size 256` is `global_batch_size=256`. A YAML file
for `--config` has the same names, and flags override the file. `--help` shows the flags that are
bold on this page, and `--help-all` shows all flags.

`python docs/settings_page.py` writes this page.
"""
COMMANDS: dict[str, type[Settings]] = {
    "evaluate": evaluate.EvaluateConfig,
    "predict": predict.PredictConfig,
    "plan": plan.PlanConfig,
    "check": check.CheckConfig,
    "convert import": convert.ImportConfig,
    "convert export": convert.ExportConfig,
    "devices": devices.DevicesConfig,
    "launch": launcher.LaunchConfig,
    "launch slurm": slurm.SlurmConfig,
}


def row(facts: Facts) -> str:
    """Returns the line of a setting: its flag, its values and what it is for."""
    default = facts.default
    flag = f"`{facts.metavar or facts.name.upper()}`"
    if not facts.positional:
        flag = f"`--{facts.name.replace('_', '-')}`"
    if facts.basic:
        flag = f"**{flag}**"
    values = facts.metavar or conversion.metavar(facts.annotation)
    if facts.annotation is bool:
        values = ""
    text = facts.help_text
    if default is REQUIRED:
        text += " (required)"
    elif (
        "(default" not in text
        and not any(default is none for none in (None, False))
        and default != ()
    ):
        written = facts.separator.join(default) if facts.separator else shown(default)
        text += f" (default: {written})"
    cells = (flag, "" if facts.positional else values, text)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def table(rows: Iterable[str]) -> str:
    return "\n".join(["| flag | values | meaning |", "|---|---|---|", *rows])


def page() -> str:
    """Returns the whole page."""
    parts, known = [HEAD, "## Training\n"], fields(TrainConfig)
    for group in TrainConfig.__mro__:
        names = [name for name in vars(group).get("__annotations__", ()) if name in known]
        if names:
            title = (group.__doc__ or "").partition("\n")[0].rstrip(".")
            parts.append(f"### {title}\n\n{table(row(known[name]) for name in names)}\n")
    saved = fields(SavedRunConfig)
    parts.append(
        "## Commands for a run\n\n`evaluate`, `predict` and `convert export` share these flags:\n"
    )
    parts.append(table(map(row, saved.values())) + "\n")
    for command, cls in COMMANDS.items():
        own = fields(cls)
        names = [name for name in own if own[name] != known.get(name) and name not in saved]
        shared = (
            "It also accepts flags of training. " if (own.keys() & known) - {*names, *saved} else ""
        )
        parts.append(
            f"## {command}\n\n{shared}`python -m jaxdp.{command} --help-all` lists all flags.\n"
        )
        parts.append(table(row(own[name]) for name in names) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
