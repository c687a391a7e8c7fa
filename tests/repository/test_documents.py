"""What the documents point to is there, what they tell to type exists, and the notebooks were
run.
"""

import ast
import importlib
import json
import pathlib
import re
import runpy
import statistics

import pytest

from jaxdp.__main__ import COMMANDS

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("deploy/*.md"),
        ROOT / "experiments" / "README.md",
        ROOT / "findings" / "README.md",
    ]
)
NOTEBOOKS = sorted(ROOT.glob("experiments/notebooks/*.ipynb"))


def anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(found), f"{target}: no such heading"


MENTIONED = re.compile(
    r"(?<![\w./-])((?:tests|benchmarks|experiments|docs|examples|deploy|findings|src)/[\w./-]*"
    r"\.(?:py|sh|md|ipynb|txt|toml|yaml))\b"
)


def test_files_that_are_mentioned_exist() -> None:
    """Paths from the root, or from the folder of the file, in code, comments and pages."""
    kinds = (".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".ipynb", ".cfg")
    folders = (
        "src",
        "tests",
        "benchmarks",
        "experiments",
        "docs",
        "examples",
        "deploy",
        "findings",
    )
    files = [path for folder in (*folders, ".ci", ".github") for path in (ROOT / folder).rglob("*")]
    files += [path for path in ROOT.glob("*") if path.stem != "CHANGELOG"]
    checked = 0
    for file in [path for path in files if path.suffix in kinds or path.parent.name == ".ci"]:
        for path in MENTIONED.findall(file.read_text()):
            if not re.search("[A-Z]{4}", path.replace("README", "")):  # names a form, as NAME.py
                there = (ROOT / path).exists() or (file.parent / path).exists()
                assert there, f"{file.relative_to(ROOT)} mentions {path}"
                checked += 1
    assert checked > 100


def test_benchmarks_that_nox_knows_exist() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    (names,) = [
        [ast.literal_eval(key) for key in node.value.keys if key]
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "BENCHMARKS"
        and isinstance(node.value, ast.Dict)
    ]
    assert len(names) > 5
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in names), names


def test_tables_are_whole() -> None:
    """Each has a line with its columns and a line that separates it: no blank line cuts a table."""
    for page in PAGES:
        lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()
        for before, first, second in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
            if first.startswith("|") and not before.startswith("|"):
                assert re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", second), f"{page.name}: {first}"


def commands(page: pathlib.Path) -> list[tuple[str, str]]:
    """Returns each command in blocks and in inline code, with the words that follow it."""
    text = page.read_text().replace("\\\n", " ")
    return re.findall(r"(?:python -m jaxdp\.|(?<=`)jaxdp |(?<=[$] )jaxdp )(\w+)([^\n#`]*)", text)


def test_commands_exist() -> None:
    for page in [page for page in PAGES if page.stem != "CHANGELOG"]:  # which has removed ones
        for name, _ in commands(page):
            assert name in COMMANDS or name == "NAME", f"{page.name} speaks of jaxdp.{name}"


def test_flags_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag of a command is one that its `--help-all` knows; the changelog has removed ones."""
    helps: dict[str, str] = {}
    pages = [page for page in PAGES if page.stem != "CHANGELOG"]
    for where, (name, words) in [(page, found) for page in pages for found in commands(page)]:
        own, _, started = words.partition(" -- ")
        kinds = {"launch": ("slurm",), "convert": ("import", "export")}.get(name, ())
        kind = [word for word in own.split()[:1] if word in kinds]
        for command, text in ((" ".join([name, *kind]), own), ("train", started)):
            flags = re.findall(r"(?<!\S)--[a-z][a-z-]+", text)
            if flags and command not in helps:
                module, *words_before = command.split()
                with pytest.raises(SystemExit):
                    importlib.import_module(f"jaxdp.{module}").main([*words_before, "--help-all"])
                helps[command] = capsys.readouterr().out
            for flag in flags:
                exists = re.search(rf"(?<![\w-]){flag}(?![\w-])", helps[command])
                assert exists, f"{where.name}: {command} has no {flag}"
    assert {"train", "predict"} <= helps.keys()


def test_the_page_of_settings_is_current() -> None:
    writer = runpy.run_path(str(ROOT / "docs" / "settings_page.py"))
    assert writer["PAGE"].read_text() == writer["page"](), "run python docs/settings_page.py"


GENERATED = re.compile(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->", re.DOTALL)

# What native writers would not write here, and the name that is on no package index.
AVOIDED = re.compile(
    r"(?:^|[.:!?] )Of \w|\b(?:besides?|in place of|tells?|told|whoever|somebody)\b|'jaxdp\[|, too\b",
    re.MULTILINE,
)


def test_pages_are_in_plain_words() -> None:
    """No phrase of `AVOIDED`, and no sentence of more than 30 words, outside code and tables."""
    for page in PAGES:
        if page.stem in ("CHANGELOG", "engineering-notes", "fault-tests"):
            continue
        text = re.sub(r"```.*?```", "", GENERATED.sub("", page.read_text()), flags=re.DOTALL)
        assert not AVOIDED.findall(text), f"{page.name}: {AVOIDED.findall(text)}"
        prose = re.sub(r"^(?:\||#|- |<|>).*$", ".\n", text, flags=re.MULTILINE)
        for sentence in re.split(r"(?<=[.:;!?])\s|\n\n", prose):
            assert len(sentence.split()) <= 30, f"{page.name}: {sentence}"


def kept_accuracies() -> set[str]:
    """Returns the test accuracies in experiments/results/, as percentages."""
    folder = ROOT / "experiments" / "results"
    runs = [json.loads(file.read_text())["metrics"] for file in folder.glob("*/summary.json")]
    found = [metrics["test"] for metrics in runs if "test" in metrics]
    for file in folder.glob("*/seeds.json"):
        found += json.loads(file.read_text())["seeds"]
    return {f"{metrics['accuracy']:.2%}" for metrics in found if "accuracy" in metrics}


def test_numbers_of_the_pages_are_those_of_their_files() -> None:
    """Accuracies are in a kept result, and the opening of the benchmarks is that of the tables."""
    kept = kept_accuracies()
    for page in PAGES:
        if page.stem not in ("CHANGELOG", "engineering-notes"):
            said = set(re.findall(r"\d+\.\d\d%", GENERATED.sub("", page.read_text())))
            assert said <= kept, f"{page.name}: {said - kept} is in no file of experiments/"
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    opening = " ".join(text.partition("\n## ")[0].split())
    newest = dict(GENERATED.findall(text))["versus_torch_newest"]
    ratios = {
        row.split()[1]: float(row.split("|")[-3].strip(" *"))
        for row in reversed(newest.splitlines())
        if "batch" in row
    }
    faster = min(ratios["VGG"], ratios["ResNet"])
    slower = 1 - min(ratios["U-Net"], ratios["PyramidNet"])
    assert f"{faster:.1f} times as fast" in opening
    assert f"{slower:.0%} slower" in opening
    file = ROOT / "experiments" / "results" / "cifar10_94" / "results.json"
    runs = [
        run for run in json.loads(file.read_text())["results"]["runs"] if run["side"] == "jaxdp"
    ]
    minutes = statistics.fmean(run["seconds"]["total"] for run in runs) / 60
    assert f"in {minutes:.0f} minutes" in opening


def test_tables_stand_where_commands_write_them() -> None:
    pages = ("docs/benchmarks.md", "docs/engineering-notes.md", "experiments/README.md")
    for path in [ROOT / page for page in pages]:
        text = path.read_text()
        tables = GENERATED.findall(text)
        assert len(tables) == text.count(": begin -->") > 0, (
            f"{path.name}: a mark of a table is missing"
        )
        for name, table in tables:
            assert "|---" in table, f"{path.name}: nothing was written for {name}"


def test_the_readme_shows_the_results_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "scripts"))
    blocks = importlib.import_module("results").readme_blocks()
    text = (ROOT / "README.md").read_text()
    assert (
        blocks.keys() == set(re.findall(r"<!-- (\w+): begin -->", text)) == {"picture", "results"}
    )
    for name, block in blocks.items():
        assert f"<!-- {name}: begin -->\n{block}\n<!-- {name}: end -->" in text, (
            "python experiments/scripts/results.py --only --write"
        )


def named_tests() -> dict[str, set[str]]:
    """Returns the names of the tests in each file of tests/."""
    found = {}
    for file in ROOT.glob("tests/**/test_*.py"):
        tree = ast.parse(file.read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        found[file.relative_to(ROOT).as_posix()] = {
            name for name in names if name.startswith("test_")
        }
    return found


def test_each_bug_that_is_not_here_has_a_test() -> None:
    """Each line of the page ends with a test that exists."""
    tests = named_tests()
    lines = (ROOT / "docs" / "not-here.md").read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| (?!fault )", line)]
    assert len(rows) >= 20
    for row in rows:
        found = re.fullmatch(r".* \| `(tests/\S+\.py)::(test_\w+)` \|", row)
        assert found, row
        assert found[2] in tests.get(found[1], ()), f"{found[1]} has no {found[2]}"


def test_each_finding_is_a_script_and_a_line_of_the_table() -> None:
    folder = ROOT / "findings"
    rows = dict(
        re.findall(r"^\| \[(\S+)\]\(\1\.sh\) \| (.*?) \|", (folder / "README.md").read_text(), re.M)
    )
    assert rows.keys() == {path.stem for path in folder.glob("*.sh")}
    for name, packages in rows.items():
        text = (folder / f"{name}.sh").read_text()
        for heading in (
            "Question: ",
            "Guess: ",
            "What happens: ",
            "Seen with ",
            "Why it matters: ",
        ):
            assert f"\n# {heading}" in text, f"{name}: {heading}"
        for package in packages.split(", "):
            assert f" {package.replace(' ', '==')}" in text, f"{name} does not install {package}"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 110
    assert all(len(line) <= 100 for line in lines if not line.startswith("|"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_were_run_and_are_small(notebook: pathlib.Path) -> None:
    assert notebook.stat().st_size < 2**20
    cells = [
        cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells)
    assert not any(output["output_type"] == "error" for output in outputs)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 3, "samples, curves and predictions are shown"
    for cell in cells:
        ast.parse("".join(cell["source"]))
    text = notebook.read_text()
    assert not re.search("|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)), text), (
        "a mark of unfinished work, or a picture that spells one"
    )
    assert not re.search(r"/(?:tmp|home|root|work|opt)/", text), "a path of the machine that ran it"


def test_notebooks_install_alike() -> None:
    """One first cell for all, and no badge while the repository has no public address."""
    texts = [notebook.read_text() for notebook in NOTEBOOKS]
    cells = [cell for text in texts for cell in json.loads(text)["cells"]]
    assert len({"".join(cell["source"]) for cell in cells if "SOURCE = " in str(cell)}) == 1
    assert all("SOURCE = " in text and "colab.research" not in text for text in texts)
