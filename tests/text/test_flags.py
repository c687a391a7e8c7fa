"""A sentence holds the settings that it names as parts; its reader gets flags or keywords."""

import ast
import pathlib
import pickle
import re
from collections.abc import Iterator

import pytest

import jaxdp
from jaxdp.cli.command_line import ending
from jaxdp.data import BadExample
from jaxdp.errors import ConfigError, flag
from jaxdp.rundir.layout import LostFolder, RunDirectory
from jaxdp.text.flags import Sentence, for_command, for_python, names

SOURCE = pathlib.Path(jaxdp.__file__).parent


@pytest.mark.parametrize(
    ("part", "by_flag", "by_keyword"),
    [
        (flag("run_dir"), "--run-dir", "run_dir"),
        (flag("validation", 0.1), "--validation 0.1", "validation=0.1"),
        (flag("strategy", "sharded"), "--strategy sharded", 'strategy="sharded"'),
        (flag("augment", ("flip", "crop:4")), "--augment flip crop:4", "augment=flip crop:4"),
        (flag("model_kwargs", {"width": 4}), "--model-kwargs width=4", "model_kwargs=width=4"),
        (flag("mask_values", ""), "--mask-values", "mask_values"),
        (flag("mask_values", "0,1"), "--mask-values 0,1", 'mask_values="0,1"'),
        (flag("strategy", "a or b", quote=""), "--strategy a or b", "strategy=a or b"),
        (flag("dataset", "a\ufdd2b\ufdd1c"), "--dataset abc", 'dataset="abc"'),
        (flag("dataset", "a_b; c\nd"), "--dataset a_b; c d", 'dataset="a_b; c d"'),
    ],
)
def test_a_part_is_a_flag_or_a_keyword(part: str, by_flag: str, by_keyword: str) -> None:
    sentence = "; ".join([f"give {part}, or leave it out", part + "."])
    assert for_command(sentence) == f"give {by_flag}, or leave it out; {by_flag}."
    assert for_python(sentence) == f"give {by_keyword}, or leave it out; {by_keyword}."


def test_what_is_no_part_stays() -> None:
    sentence = f"run python -m jaxdp.plan --target v5e --steps 3, with {flag('steps', 3)} --a 1"
    assert for_command(sentence).endswith("plan --target v5e --steps 3, with --steps 3 --a 1")
    assert for_python(sentence).endswith("plan --target v5e --steps 3, with steps=3 --a 1")


def test_an_error_is_read_both_ways_wherever_it_went() -> None:
    error = ConfigError("mask_values", "0,1", f"is wrong; give {flag('num_classes', 3)}")
    outer = ConfigError("", "", f"{error.remedy.template} (for masks)")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each) == "mask_values=0,1: is wrong; give num_classes=3"
        assert for_command(each) == "--mask-values 0,1: is wrong; give --num-classes 3"
        assert names(each.remedy) == {"num_classes"}
    assert for_command(outer) == "is wrong; give --num-classes 3 (for masks)"
    assert error.remedy == "is wrong; give num_classes=3"  # fit for a program that prints it
    assert repr(error) == "ConfigError('mask_values', '0,1', 'is wrong; give num_classes=3')"


def test_a_bad_example_says_its_problem_both_ways() -> None:
    problem = f"has 7, not one of {flag('mask_values', '0,1')}"
    for error in (
        BadExample("a.png", problem),
        pickle.loads(pickle.dumps(BadExample("a", problem))),
    ):
        assert error.problem == 'has 7, not one of mask_values="0,1"'
        assert str(error).endswith(
            'mask_values="0,1"; fix or remove it, or leave such examples out with'
            ' on_bad_example="skip"'
        )
        assert for_command(error).endswith(
            "--mask-values 0,1; fix or remove it, or leave such"
            " examples out with --on-bad-example skip"
        )


def test_a_program_and_a_command_at_a_time_each_read_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = ConfigError("steps", 0, f"must be more; or give {flag('epochs')}")
    with ending("jaxdp.train") as end:
        assert str(error) == "steps=0: must be more; or give epochs"
        raise error
    assert end.code == 2
    line = "jaxdp.train: error: --steps 0: must be more; or give --epochs\n"
    assert capsys.readouterr().err == line


def test_a_lost_folder_is_read_both_ways() -> None:
    pathlib.Path("run").mkdir()
    found = pathlib.Path("run").stat()
    pathlib.Path("run").rename("moved")
    with pytest.raises(LostFolder) as caught:
        RunDirectory(pathlib.Path("run")).check_in_place(found)
    assert isinstance(caught.value, OSError)
    assert str(caught.value).endswith("give its new path as run_dir")
    assert for_command(caught.value).endswith("give its new path as --run-dir")


OPEN, CLOSE = flag("x").split("x")


def test_marks_in_data_neither_break_a_part_nor_reach_a_terminal() -> None:
    name = f"{CLOSE}a{OPEN}b=1{CLOSE}{CLOSE}{OPEN}"
    error = ConfigError("dataset", name, f"{name} is empty; give {flag('dataset', name)}, {OPEN}")
    for text in (str(error), for_command(error)):
        assert OPEN not in text
        assert CLOSE not in text
    assert for_command(error).startswith(r"--dataset ab=1: \ufdd1a--b 1\ufdd1\ufdd0 is empty; give")
    assert for_python(error).endswith(r'give dataset="ab=1", \ufdd0')


def test_a_sentence_keeps_its_lines_and_parts() -> None:
    sentence = Sentence(f"one\ntwo {flag('steps', 2)}")
    assert sentence == "one\ntwo steps=2"
    kept = pickle.loads(pickle.dumps(Sentence(sentence)))
    assert for_command(kept) == "one two --steps 2"


# Flags that a person pastes into a shell, and words of commands that jaxdp starts.
COMMAND = re.compile(
    r"\b(python -m|sbatch|srun|hf download) [^;]*|\(see \S+ --help\)|see \S+ --help-all"
)
WORD = re.compile(r"--[a-z-]+")
NO_SENTENCES = {
    "launch.py": ("Start processes: ", "Print a batch script: ", "Train on a Ray cluster: "),
    "launching/launcher.py": ("--coordinator 127.0.0.1:",),
    "launching/slurm.py": ("#!/bin/bash", "#SBATCH", " --cpus-per-task="),
    "runtime/platform.py": ("--xla_", "--{}="),
    "text/flags.py": ("--{} {}",),
    "workers/actor.py": ("{} --{}=false",),
}


def literals(code: str) -> Iterator[tuple[int, str]]:
    """Yields the texts of a module but for docstrings and help, with `{}` for what is put in."""
    tree, left_out = ast.parse(code), set[ast.AST]()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                left_out.add(docstring)
            case ast.Call(func=ast.Name(id="setting")):
                left_out |= {*ast.walk(node)}
            case ast.JoinedStr(values=values):
                left_out |= {*values}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in left_out:
                yield node.lineno, text
            case ast.JoinedStr(values=values) if node not in left_out:
                parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in values]
                yield node.lineno, "".join(map(str, parts))


def written_out(code: str, beginnings: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    """Returns the texts in which a flag is no part."""
    return [
        (line, text)
        for line, text in literals(code)
        if not (WORD.fullmatch(text) or text.startswith(beginnings or "\0"))
        and re.search(r"(?<![\w-])--[a-z{]", COMMAND.sub("", text))
    ]


def test_no_sentence_writes_out_a_flag() -> None:
    """Flags in errors, warnings and notes are parts, in all of jaxdp."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if lines := written_out(path.read_text(), NO_SENTENCES.get(name, ())):
            found[name] = lines
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        'raise ConfigError("x", 1, "give --steps 3")',
        'raise ConfigError("x", 1, f"give {a}; or --{name}")',
        'warn("set some apart, e.g. with" " --validation 0.1")',
        'say(f"note: {a}: --image-size {b} by default")',
        'raise BadExample(where, "not one of --mask-values")',
        'remedy = "--strategy single uses one"',
    ],
)
def test_a_flag_that_is_written_out_is_found(code: str) -> None:
    assert written_out(code)


def test_commands_words_and_help_may_have_flags() -> None:
    code = '''
        def f():
            """Is for `--steps`."""
            setting(None, "instead of --epochs")
            words = ["--run-dir", path]
            raise ConfigError("x", 1, f"use python -m jaxdp.plan --target; {flag('x')}")
    '''
    assert not written_out("if True:" + code)
