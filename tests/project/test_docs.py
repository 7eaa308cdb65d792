"""The documentation says what the code says: its commands run, its links lead somewhere, its pages are complete."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import graft
from cli.main import program
from docs import generate
from docs.generators import commands as commands_page
from docs.offline import fetched
from graft.plugins.families import families, families_by_folder, family_of
from spaces import parse, plugins
from spaces.plugins import rules
from spaces.reading import catalogue
from spaces.settings import Search, Training
from storage.schema import metadata
from tests.support.inside import called

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOT_PAGES = {"index.md": "README.md"} | {name: name for name in ("BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md")}
HISTORY = ("BENCHMARKS.md", "CHANGELOG.md", *(f"log/{path.name}" for path in sorted((DOCS / "log").glob("*.md"))))
"""Pages that say what was, and may name files that are gone."""
SCRIPTS = ("slurm.sbatch", "kuberay.yaml", "figures/make")
CUT = ["--trials=20", "--set=search.group=20", "--steps=6", "--set=training.validate_every=3"]
"""What cuts launches to a few steps where a page says `cut short`."""
HERE = ["--executor=inline", "--device=cpu", "--workers=1", "--pack=20"]


class Block(NamedTuple):
    """A block of commands on a page, and the comment above it."""

    page: str
    marker: str
    text: str

    @property
    def runs(self) -> bool:
        return not self.marker.startswith(("not run: ", "test"))


@cache
def nav() -> Mapping[str, str]:
    """Page -> its title, in the order of the site."""

    def flat(entries: list[Any], title: str = "") -> Iterator[tuple[str, str]]:
        for entry in entries:
            if isinstance(entry, str):
                yield entry, title
            else:
                [(name, inner)] = entry.items()
                yield from flat(inner, name) if isinstance(inner, list) else [(inner, name)]

    return dict(flat(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


@cache
def made() -> Mapping[str, str]:
    """Return the pages that are made from the code."""
    return generate.pages()


def text_of(page: str) -> str:
    """Return the Markdown of a page of the site that is a file."""
    return (ROOT / ROOT_PAGES[page] if page in ROOT_PAGES else DOCS / page).read_text()


WRITTEN = [page for page in nav() if not page.startswith("reference/")]
BLOCKS = [
    Block(page, marker or "", text)
    for page in WRITTEN
    for marker, text in re.findall(r"(?:<!-- (.*?) -->\n)?```sh\n(.*?)```", text_of(page), flags=re.DOTALL)
]


def lines(text: str) -> Iterator[str]:
    """Yield the commands of a block, or of a script; a quotation may go over several lines."""
    whole = ""
    for line in text.replace("\\\n", " ").splitlines():
        whole += line
        try:
            shlex.split(whole, comments=True)
        except ValueError:
            whole += "\n"
        else:
            yield whole.strip()
            whole = ""


def searches(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of `search`, without what the shell does around it."""
    for line in lines(text):
        for command in re.split(r"&& | \| ", line):
            if match := re.fullmatch(r"(?:exec )?search (.*?)&?", command, flags=re.DOTALL):
                yield shlex.split(match[1].replace('"$@"', "SPACE"), comments=True)


def understood(arguments: list[str]) -> bool:
    """Whether the program has this command with these options; raises the program's own error if not."""
    command: Any = program()
    while hasattr(command, "commands"):
        is_whole = not arguments or arguments[0].startswith("-")
        if is_whole and command.invoke_without_command:
            break
        name, *arguments = arguments
        command = command.commands[name]
    return bool(command.make_context(command.name, arguments).params)


def test_the_program_understands_every_command_of_the_documentation() -> None:
    texts = [
        *((block.page, block.text) for block in BLOCKS),
        *((page, "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))) for page, text in made().items()),
        *((name, (DOCS / name).read_text()) for name in SCRIPTS),
    ]
    calls = [(page, arguments) for page, text in texts for arguments in searches(text)]
    pages = {page for page, _ in calls}
    assert {*SCRIPTS, "index.md", "tutorial.md", "how-to/cluster.md", "reference/commands.md"} <= pages
    for page, arguments in calls:
        assert understood(arguments), page


def test_the_program_knows_the_commands_and_options_named_within_sentences() -> None:
    known = dict(commands_page.commands()) | {"": None}
    groups = {name.partition(" ")[0] for name in known}
    for page in WRITTEN:
        for code in re.findall(r"`search ([^`]+)`", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)):
            words = code.split()
            name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
            assert name in known or name in groups or name == "COMMAND", f"{page}: search {code}"
            options = {option for parameter in getattr(known.get(name), "params", ()) for option in parameter.opts}
            for word in words:
                assert not word.startswith("--") or word in options | {"--help"}, f"{page}: search {code}"


def test_a_command_that_an_option_was_taken_from_is_noticed() -> None:
    with pytest.raises(Exception, match="--spacing"):
        understood(["launch", "quick/set_complement", "--spacing", "3"])


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.page)
def test_every_block_of_commands_is_run_or_says_why_not(block: Block) -> None:
    if block.marker.startswith("not run:"):
        assert len(block.marker) > len("not run: ") + 5, "give the reason"
    elif block.marker != "test":
        assert block.marker in ("", "cut short"), block.marker
        assert all(line.startswith("search ") for line in lines(block.text) if line), block.text


def test_no_command_hides_outside_a_block() -> None:
    for page in WRITTEN:
        assert not re.search(
            r"^ {4,}(search|pip|pytest|python) ", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL), re.MULTILINE
        ), page


@pytest.mark.long
def test_the_commands_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one folder, page after page as a reader would; each page finds the database, and no other file of the last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    ran = set[str]()
    for page in WRITTEN:
        for left in tmp_path.iterdir():
            if left.is_file() and not left.name.startswith("graft.db"):
                left.unlink()
        for space in spaces_of(page):
            Path(f"{yaml.safe_load(space)['study']}.yaml").write_text(space)
        for block in (block for block in BLOCKS if block.page == page and block.runs):
            for arguments in searches(block.text):
                if arguments[0] in ("launch", "submit") and block.marker == "cut short":
                    arguments += CUT
                if "--until" in arguments:
                    arguments[arguments.index("--until") + 1] = "3"  # of the launches that are cut short
                if arguments[0] in ("launch", "resume", "advise"):
                    arguments += HERE
                if arguments[0] == "serve":
                    arguments += HERE[1:]
                status, _, error = called(monkeypatch, capsys, *arguments)
                assert status == 0, f"{page}: search {shlex.join(arguments)}: {error}"
                ran.add(arguments[0])
    assert {"launch", "resume", "report", "replay", "query", "export", "weights", "space", "db"} <= ran


@pytest.mark.long
def test_the_numbers_of_the_first_study_are_those_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README and the tutorial print numbers of one study, which is trained here whole; the last digits may differ."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)

    def run(*arguments: str) -> str:
        status, out, error = called(monkeypatch, capsys, *arguments)
        assert status == 0, error
        return out + error

    tutorial, readme = text_of("tutorial.md"), " ".join(text_of("index.md").split())
    output = run("launch", "quick/set_complement", *HERE[:-1], "--pack=64")
    best = r"finished of 64; best tvd/bema (\S+) \(trial (\d+)\);"
    assert_alike(best, tutorial, output)
    run("report", "study", "quick-set-complement", "-o", "report.md")
    change = r"([+−]\d+\.\d) ± (\d+\.\d) %(?: \(best 10 %\)| for the best tenth)"
    assert_alike(change, tutorial, Path("report.md").read_text())
    worse = re.findall(r"the best tenth is (\S+) ± (\S+) % worse with BEMA", readme)
    assert worse == [(rise.removeprefix("+"), margin) for rise, margin in re.findall(change, tutorial)]

    query, table = re.findall(r'search query "(.*?)"\n```\n\n(.*?)\n\n', tutorial, flags=re.DOTALL)[0]
    row = r"^ +(\d) +(\d+) +(\S+) +(\S+)$"
    assert_alike(row, re.sub("^    ", "", table, flags=re.MULTILINE), run("query", query))
    [without] = re.findall(r"(\d+) of the 64", readme)
    assert f"{without} of 64 trials have none" in tutorial
    assert re.findall(row, table, re.MULTILINE)[1][1] == without
    of_best = run("trials", "quick-set-complement", "--sort", "objective", "--top", "6", "--format", "json")
    rows = json.loads(of_best.splitlines()[0])  # on stderr stands the order
    rates = [trial for trial in rows for path in trial if path.endswith("dropout") and trial[path] != 0]
    assert not rates, "the six best have no dropout"
    [mean] = run("query", "SELECT avg(params->>'model.embedding_dropout') AS mean FROM trials").split()[1:]
    assert_alike(r"rates are about (\d\.\d+) over", tutorial, f"rates are about {float(mean):.2f} over")
    assert "finding:" not in tutorial.replace("not a finding:", "")


def assert_alike(pattern: str, printed: str, made: str) -> None:
    """Compare the numbers that a page prints with those that were made, to two units of the last digit printed."""
    said, results = ([match.groups() for match in re.finditer(pattern, text, re.MULTILINE)] for text in (printed, made))
    assert said
    assert len(said) == len(results), f"{said} is printed, but {results} was made"
    for number, again in zip(chain(*said), chain(*results), strict=True):
        decimals = len(number.partition(".")[2])
        assert abs(_number(number) - _number(again)) <= 2.01 * 10.0**-decimals, f"{number} is printed, not {again}"


def _number(text: str) -> float:
    return float(text.replace("−", "-"))


def spaces_of(page: str) -> list[str]:
    """Return the spaces written out on a page."""
    return [
        text for text in re.findall(r"```yaml\n(.*?)```", text_of(page), flags=re.DOTALL) if text.startswith("study:")
    ]


@pytest.mark.parametrize("page", [page for page in WRITTEN if spaces_of(page)])
def test_the_spaces_of_the_documentation_are_spaces(page: str) -> None:
    for text in spaces_of(page):
        parse(text, page, families()).check(20)


@pytest.mark.parametrize("page", WRITTEN)
def test_links_lead_to_files(page: str) -> None:
    folder = ROOT if page in ROOT_PAGES else (DOCS / page).parent
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page)):
        assert "://" in target or (folder / target).exists(), f"{page}: {target}"


def test_the_scorer_that_is_shown_is_the_one_in_its_file() -> None:
    [shown] = re.findall(r"```python\n(.*?)```", text_of("how-to/plug-in.md"), flags=re.DOTALL)
    assert (ROOT / "workers/networks/scorers/softmax.py").read_text().endswith(shown)


def test_files_that_are_named_exist() -> None:
    ours = r"`((?:cli|docs|graft|search|spaces|storage|tests|workers)/[\w./-]*)`"
    named = {(page, path) for page in WRITTEN if page not in HISTORY for path in re.findall(ours, text_of(page))}
    assert [(page, path) for page, path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.long
def test_the_site_has_every_page() -> None:
    files = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {*nav()} == files | {*made()} | {*ROOT_PAGES}


def test_the_readme_is_short() -> None:
    assert len(text_of("index.md").splitlines()) <= 130


def test_the_reference_names_all_that_there_is() -> None:
    pages = made()
    for name, command in commands_page.commands():
        assert f"## search {name}\n" in pages["reference/commands.md"]
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("-")]
        assert all(option in pages["reference/commands.md"] for option in options), name
    for table in metadata.tables.values():
        section = pages["reference/sql.md"].partition(f"## {table.name}\n\n")[2].partition("\n## ")[0]
        assert section[0].isupper(), f"{table.name} has a sentence"
        assert all(f"| `{column.name}` |" in section for column in table.columns), table.name
    for settings in (Training, Search):
        assert all(f"| `{field}` |" in pages["reference/language.md"] for field in rules(settings))
    for name in catalogue.packaged_spaces():
        assert f"## {name}\n" in pages["reference/spaces.md"]


def test_the_default_of_an_option_with_a_variable_is_its_value() -> None:
    rows = made()["reference/commands.md"].splitlines()
    assert any("| `$SEARCH_LOG_FORMAT`, else `text` |" in row for row in rows)
    assert any("| `$SEARCH_STORAGE`, else `sqlite:///graft.db` |" in row for row in rows)
    assert not any("else `True`" in row or "`None`" in row for row in rows)


def test_the_reference_of_python_has_every_public_name_with_its_signature() -> None:
    page = made()["reference/python.md"]
    for name in graft.__all__:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        definition = getattr(graft, name)
        for member, value in vars(definition).items() if isinstance(definition, type) else ():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert f"\n### {name}.{member}\n" in section, f"{name}.{member}"
    assert "### Study.trials\n\n```python\ntrials(where: str | None = None, sort: str | None = None" in page
    assert "### Study.wait" in page


def test_the_reference_of_contracts_has_what_a_plug_in_implements_and_is_given() -> None:
    page = made()["reference/contracts.md"]
    for family in map(family_of, families_by_folder().values()):
        assert f"\n## {family.__name__}\n" in page
    for name in ("Task.training", "Task.validation", "Scorer.weights", "Model.outputs", "Streams.of", "Streams.words"):
        assert f"\n### {name}\n" in page, name


ANCHORS = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchor_of(heading: str) -> str:
    """Return the anchor that the site gives a heading."""
    plain = re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@pytest.mark.parametrize("page", WRITTEN)
def test_links_lead_to_headings(page: str) -> None:
    folder = ROOT if page in ROOT_PAGES else (DOCS / page).parent
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
        if "://" not in target:
            there = (folder / target).read_text() if target else text_of(page)
            assert anchor in map(anchor_of, ANCHORS.findall(there)), f"{page}: {target}#{anchor}"


def test_pages_that_list_tables_and_families_list_them_all() -> None:
    assert all(f"`{table}`" in text_of("how-to/look.md") for table in metadata.tables if table != "alembic_version")
    assert all(f"`{family}`" in text_of("how-to/plug-in.md") for family in families())


def test_the_reference_has_every_plug_in_with_its_fields() -> None:
    pages = made()
    for family in families().values():
        page = pages[f"reference/plug-ins/{family.__module__.rpartition('.')[2]}.md"]
        for name in plugins.names(family):
            section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert f"/{name}.py`" in section
            assert all(f"| `{field}` |" in section for field in rules(plugins.load(family, name))), name


def test_the_architecture_page_says_where_what_is() -> None:
    rows = re.findall(r"^\| (.+?) \| `(\S+\.py)` \| `(\S+)` \|$", text_of("explanation/architecture.md"), re.MULTILINE)
    assert len(rows) >= 20
    wrong = [f"{what}: {file} has no {name}" for what, file, name in rows if not defines(file, name)]
    assert not wrong, "\n".join(wrong)


def defines(file: str, name: str) -> bool:
    """Whether a file has an object of this dotted name, and defines it itself."""
    if not (ROOT / file).is_file():
        return False
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return not callable(value) or value.__module__ == module


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ('<a href="https://example.org">a link</a> <img src="figures/a.svg">', ""),
        ('<link rel="stylesheet" href="https://fonts.example.org/a.css">', "https://fonts.example.org/a.css"),
        ("<script async src=//cdn.example.org/a.js></script>", "//cdn.example.org/a.js"),
        ("@font-face {src: url(https://example.org/a.woff2)}", "https://example.org/a.woff2"),
    ],
)
def test_what_a_page_would_fetch_from_elsewhere_is_found(text: str, address: str) -> None:
    assert fetched(text).endswith(address)
    assert bool(fetched(text)) == bool(address)


def test_the_file_for_slurm_is_a_script_and_the_one_for_kubernetes_is_yaml() -> None:
    for script in ("slurm.sbatch", "figures/make"):
        subprocess.run(["bash", "-n", DOCS / script], check=True)
    kinds = [part["kind"] for part in yaml.safe_load_all((DOCS / "kuberay.yaml").read_text())]
    assert kinds == ["Service", "StatefulSet", "RayCluster", "Deployment"]


def test_no_node_of_the_files_for_clusters_goes_without_a_token() -> None:
    parts = list(yaml.safe_load_all((DOCS / "kuberay.yaml").read_text()))
    [cluster, service] = parts[-2:]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"], service["spec"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    for container in containers:
        access = {variable["name"]: variable for variable in container["env"]}
        assert access["RAY_AUTH_MODE"]["value"] == "token"
        assert access["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "graft", "key": "token"}
    assert len(containers) == 3
