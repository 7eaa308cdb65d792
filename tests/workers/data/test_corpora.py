"""Corpora, tokenizers and the arrays on disk: exact counts, round trips, oracles written apart, no network unasked."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spaces.errors import PluginError
from spaces.plugins.files import find_file
from tests.support.plug_ins import shipped
from workers.data.cached_arrays import Stored, read, write
from workers.data.corpora import Corpus, _stories
from workers.data.corpora._code import STRIPPERS, VERSIONS, without_java_comments, without_python_comments
from workers.data.corpora._parts import LONGEST, parts, pieces, split_of
from workers.data.corpora._tokens import Source, Tokens, lowered, tokens_of
from workers.data.corpora.file import File
from workers.data.corpora.huggingface import HuggingFace
from workers.data.corpora.python import Python, _modules
from workers.data.corpora.shakespeare import Shakespeare, plain
from workers.data.corpora.stories import Stories
from workers.data.hashing import hash_of
from workers.data.splits import Split
from workers.data.tokenizers import HasFile, Tokenizer
from workers.data.tokenizers._byte_pairs import library
from workers.data.tokenizers.bpe import BytePairEncoding
from workers.data.tokenizers.bpe_file import BytePairFile
from workers.data.tokenizers.character import Character
from workers.numerics.native import cache_folder

SENTENCES = "low low low low low lower lower newest newest newest newest newest newest widest widest widest"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokens_of.cache_clear()
    yield tmp_path / "cache" / "graft" / "corpora"
    tokens_of.cache_clear()


def written(folder: Path, text: str, name: str = "text.txt") -> File:
    (folder / name).write_text(text, encoding="utf-8")
    return File(path=find_file(str(folder / name)))


def tokens(corpus: Corpus, tokenizer: Tokenizer | None = None, rare: int = 1, lower_case: bool = False) -> Tokens:
    return tokens_of(Source(corpus=corpus, tokenizer=tokenizer or Character(), rare=rare, lower_case=lower_case))


def one_line(error: pytest.ExceptionInfo[PluginError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


# --- every corpus


def test_every_corpus_and_tokenizer_is_told_of_here() -> None:
    assert shipped(Corpus) == {"shakespeare", "python", "stories", "file", "huggingface"}
    assert shipped(Tokenizer) == {"character", "bpe", "bpe_file", "gpt2"}


# --- stories


def sentences(documents: Sequence[str]) -> list[str]:
    return [sentence for document in documents for sentence in re.split(r"(?<=[.!?])\s+", document) if sentence]


def test_stories_have_thousands_of_distinct_sentences_and_no_story_comes_twice() -> None:
    documents = list(Stories(words=100_000).documents())
    assert len(set(sentences(documents))) > 5000
    assert len(set(documents)) == len(documents)
    assert all(document.endswith("\n") and 40 < len(document.split()) < 250 for document in documents)


def test_stories_are_as_long_as_asked_and_longer_ones_begin_alike() -> None:
    short, long = (list(Stories(words=words).documents()) for words in (3000, 9000))
    assert long[: len(short)] == short
    counts = [len(document.split()) for document in short]
    assert sum(counts[:-1]) < 3000 <= sum(counts)
    assert not set(short) & set(Stories(words=3000, seed=1).documents())


def test_stories_keep_to_english_articles_and_leave_no_braces() -> None:
    text = " ".join(Stories(words=100_000).documents())
    assert not re.search(r"[{}|]", text)
    assert not re.search(r"\b[Aa] [aeiou]", text)
    assert set(re.findall(r"\b[Aa]n ([^aeiou\W]\w*)", text)) <= {"hour"}
    assert not re.search(r"  |\s[.,!?]|[.!?][A-Z]", text)
    assert all(document.count('"') % 2 == 0 for document in Stories(words=20_000).documents())


def test_pronouns_of_a_story_are_of_the_genders_of_its_names() -> None:
    seen: Counter[str] = Counter()
    for document in Stories(words=50_000).documents():
        names = set(re.findall(r"\w+", document)) & {*_stories._GIRLS, *_stories._BOYS}
        pronouns = set(re.findall(r"\b(she|he|her|his|him|herself|himself)\b", document.lower()))
        assert 1 <= len(names) <= 2, document
        if names <= set(_stories._GIRLS):
            assert pronouns <= {"she", "her", "herself"}, document
        if names <= set(_stories._BOYS):
            assert pronouns <= {"he", "his", "him", "himself"}, document
        seen["".join(sorted("g" if name in _stories._GIRLS else "b" for name in names))] += 1
    assert min(seen[kinds] for kinds in ("bb", "bg", "gg")) > 30


# --- Shakespeare


def test_a_play_becomes_speakers_and_their_lines() -> None:
    markdown = (
        "# T\n\n## ACT I\n\n### SCENE I. A hill.\n\n_Enter A_\n\n**A**  \n_\\[Aside]_ Good *my* lord,  \nyes.  \n\n"
        "_Exit B_\n\n**B & C**  \nNo -\\- no.\n"
    )
    assert plain(markdown) == "A:\nGood my lord,\nyes.\n\nB & C:\nNo -- no.\n"


def test_the_plays_are_whole_and_plain() -> None:
    documents = list(Shakespeare().documents())
    assert len(documents) == 38
    hamlet = next(document for document in documents if "\nHAMLET:\n" in document)
    assert "To be, or not to be: that is the question:" in hamlet
    assert 4.5e6 < sum(map(len, documents)) < 5.2e6
    assert not re.search(r"[*_#\\]| \n|\n\n\n", "".join(documents))


def test_without_the_plays_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.data.corpora.shakespeare.find_spec", lambda _: None)
    with pytest.raises(PluginError) as error:
        list(Shakespeare().documents())
    assert "graft-search[language]" in one_line(error)


# --- source code


def bare(source: str) -> str:
    """Return the syntax tree without statements that are strings; a block left empty has a pass."""

    class Docstrings(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    kept = [statement for statement in block if not is_text(statement)]
                    setattr(node, field, kept or ([ast.Pass()] if block and not isinstance(node, ast.Module) else []))
            return node

    def is_text(node: ast.AST) -> bool:
        value = node.value if isinstance(node, ast.Expr) else None
        return isinstance(value, ast.Constant) and isinstance(value.value, str)

    return ast.dump(Docstrings().visit(ast.parse(source)))


MODULES = {path.name: path for path in _modules()}


@pytest.mark.parametrize(
    "name",
    ["ast.py", "bdb.py", "cgitb.py", "dataclasses.py", "heapq.py", "pprint.py", "smtplib.py", "textwrap.py", "this.py"],
)
def test_python_without_comments_has_the_same_syntax_tree_but_for_docstrings(name: str) -> None:
    source = MODULES[name].read_text()
    stripped = without_python_comments(source)
    assert bare(stripped) == bare(source)
    kinds = {token.type for token in tokenize.generate_tokens(io.StringIO(stripped).readline)}
    assert tokenize.COMMENT not in kinds
    assert len(stripped) <= len(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1  # one\n", "x = 1\n"),
        ("# all\nx = '# no comment'\n", "x = '# no comment'\n"),
        ('"""Module."""\nimport os\n', "import os\n"),
        ('def f():\n    """Only this."""\n', "def f():\n    pass\n"),
        ('def f():\n    """Two\n    lines."""  # more\n\n    return 1\n', "def f():\n\n    return 1\n"),
        ('class A:\n    x = 1\n    "about x"\n', "class A:\n    x = 1\n"),
        ("f(1,  # first\n  # between\n  2)\n", "f(1,\n  2)\n"),
        ('x = """text # kept"""\n', 'x = """text # kept"""\n'),
        ('class A:\n    "one"\n    "two"\n\nx = 1\n', "class A:\n    pass\n\nx = 1\n"),
        ('def f():\n    "one"\n    # between\n    "two"\n', "def f():\n    pass\n"),
        ('def f():\n    "one"\n    "two"\n    return 1\n', "def f():\n    return 1\n"),
        ('if x:\n    "one"\n    y = 1\n    "two"\n', "if x:\n    y = 1\n"),
    ],
)
def test_comments_and_docstrings_of_python_go(source: str, expected: str) -> None:
    assert without_python_comments(source) == expected


def test_what_is_no_python_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        without_python_comments("f(1,\n")


def test_comments_of_java_go_and_strings_stay() -> None:
    source = '/** About. */\nclass A { // end\n  String s = "// no"; /* a\n b */ char c = \'"\'; // "\n  int x = 1; }\n'
    expected = 'class A { String s = "// no"; char c = \'"\'; int x = 1; }'
    assert " ".join(without_java_comments(source).split()) == expected


def test_strings_of_java_keep_their_lines_and_spaces() -> None:
    text = '"""\n        first   \n\n\n        // second\n        \\""" \t\n        """'
    source = f"class A {{   // end\n\n\n  String t = {text}; /* a */   \n  int x; // gone\n}}\n"
    assert without_java_comments(source) == f"class A {{\n  String t = {text};\n  int x;\n}}\n"


def test_every_language_has_a_version() -> None:
    assert VERSIONS.keys() == STRIPPERS.keys()


@pytest.mark.long
def test_the_standard_library_comes_without_its_tests() -> None:
    assert len(_modules()) > 400
    assert not any({"test", "tests", "site-packages"} & set(path.parts[3:]) for path in _modules())
    assert {"json", "email"} <= {path.parent.name for path in _modules()}
    assert len(Python().content()) == 64


# --- files


def test_files_of_a_folder_are_read_in_order_each_in_its_way(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    written(folder, "first\n", "a.txt")
    (folder / "b.jsonl").write_text('{"text": "second", "n": 1}\n\n{"text": "thïrd"}\n', encoding="utf-8")
    pl.DataFrame({"text": ["fourth", None, "fifth"], "n": [1, 2, 3]}).write_parquet(folder / "c.parquet")
    written(folder / "inner", "last", "d.txt")
    written(folder, "not read", "e.md")
    assert list(File(path=find_file(str(folder))).documents()) == [
        "first\n",
        "second",
        "thïrd",
        "fourth",
        "fifth",
        "last",
    ]
    assert list(File(path=find_file(str(folder / "e.md"))).documents()) == ["not read"]


def test_a_folder_of_another_ending_is_read_where_it_is_named(tmp_path: Path) -> None:
    for name, content in {
        "b/One.java": "int a; // one\n",
        "a.java": "int b;\n",
        "c.txt": "no",
        "d.javac": "no",
        "e.d.java": "int d;\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    folder = File(path=find_file(str(tmp_path)), ending=".java", comments="java")
    assert list(folder.documents()) == ["int b;\n", "int a;\n", "int d;\n"]
    assert list(File(path=find_file(str(tmp_path)), ending=".d.java").documents()) == ["int d;\n"]
    assert list(File(path=find_file(str(tmp_path))).documents()) == ["no"]
    before = folder.content()
    (tmp_path / "a.java").write_text("int c;\n")
    assert File(path=find_file(str(tmp_path)), ending=".java", comments="java").content() != before
    with pytest.raises(PluginError) as error:
        list(File(path=find_file(str(tmp_path)), ending=".kt").documents())
    assert "a folder of files that end in .kt" in one_line(error)


def test_comments_of_files_go_where_asked(tmp_path: Path) -> None:
    written(tmp_path, "x = 1  # one\n", "a.py")
    assert list(File(path=find_file(str(tmp_path / "a.py")), comments="python").documents()) == ["x = 1\n"]


def test_the_content_of_a_file_decides_and_not_its_name(tmp_path: Path) -> None:
    file, same, other = (written(tmp_path, text, f"{n}.txt") for n, text in enumerate(("one", "one", "other")))
    assert file.content() == same.content() != other.content()
    assert file.content() != File(path=file.path, comments="java").content()


def test_tables_are_told_from_texts_and_from_one_another_with_the_same_bytes(tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "{"red green " * 40}"}}\n' for _ in range(100))
    text, table, other = (written(tmp_path, lines, f"a.{kind}") for kind in ("txt", "jsonl", "parquet"))
    assert len({text.content(), table.content(), other.content()}) == 3
    assert tokens(text).end > tokens(table).end == len(set("red green "))
    assert text.content() == hash_of([b"1", b"text", b"none", lines.encode()]), "kept as it was stored"
    folders = [tmp_path / name for name in ("one", "two")]
    for folder, ending in zip(folders, ("txt", "jsonl"), strict=True):
        folder.mkdir()
        (folder / f"a.{ending}").write_text(lines)
        (folder / "b.txt").write_text(lines)
    assert len({File(path=find_file(str(folder))).content() for folder in folders}) == 2


def broken(folder: Path) -> Mapping[str, Path]:
    """Files of which each is wrong in its way; what is said about it is part of the name."""
    (folder / "empty").mkdir()
    files = {"folder of files": folder / "empty", "must be a file": folder / "missing.txt"}
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "cut.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (folder / "list.jsonl").write_text("[1]\n")
    (folder / "named.jsonl").write_text('{"body": "a"}\n')
    (folder / "no.parquet").write_text("no parquet")
    (folder / "no.arrow").write_text("no arrow")
    pl.DataFrame({"text": [1]}).write_parquet(folder / "number.parquet")
    return files | {
        "byte 3 is not UTF-8": folder / "latin.txt",
        "cut.jsonl:2: this line is not JSON": folder / "cut.jsonl",
        "no fields at all": folder / "list.jsonl",
        "it has body": folder / "named.jsonl",
        "this file of parquet cannot be read": folder / "no.parquet",
        "this file of arrow cannot be read": folder / "no.arrow",
        "the table has no text 'text'": folder / "number.parquet",
    }


def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    for said, path in broken(tmp_path).items():
        with pytest.raises(PluginError) as error:
            list(File(path=find_file(str(path))).documents())
        assert said in one_line(error)


# --- the hub


def hub(rows: Callable[..., Any]) -> ModuleType:
    module = ModuleType("datasets")
    module.load_dataset = rows  # pyright: ignore[reportAttributeAccessIssue]
    return module


def test_a_data_set_of_the_hub_is_asked_for_by_name_and_read_no_further_than_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def load(*name: object, **settings: object) -> Iterator[dict[str, str]]:
        asked.append((name, settings))
        return ({"code": f"x = {n}  # {n}\n"} if n != 1 else {"code": "print 'two'("} for n in range(10**9))

    monkeypatch.setitem(sys.modules, "datasets", hub(load))
    corpus = HuggingFace(dataset="a/b", subset="python", split="test", column="code", rows=4, comments="python")
    assert not asked
    assert list(corpus.documents()) == ["x = 0\n", "x = 2\n", "x = 3\n"]
    assert asked == [(("a/b", "python"), {"split": "test", "revision": "main", "streaming": True})]
    assert corpus.content() != HuggingFace(dataset="a/b", subset="java").content()


def test_without_a_network_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach\nthe hub")

    monkeypatch.setitem(sys.modules, "datasets", hub(load))
    with pytest.raises(PluginError) as error:
        list(HuggingFace(dataset="a/b").documents())
    assert "'a/b' cannot be had from the hub, which needs a network: Couldn't reach the hub" in one_line(error)
    monkeypatch.setitem(sys.modules, "datasets", hub(lambda *_, **__: iter([{"body": "a"}])))
    with pytest.raises(PluginError) as error:
        list(HuggingFace(dataset="a/b").documents())
    assert "no text 'text', it has body" in one_line(error)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PluginError) as error:
        list(HuggingFace(dataset="a/b").documents())
    assert "pip install datasets" in one_line(error)


# --- parts


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(0, 900), min_size=1, max_size=30))
def test_the_parts_share_out_every_character_of_a_corpus(lengths: list[int]) -> None:
    places = iter(range(sum(lengths)))
    documents = ["".join(chr(0x4E00 + next(places)) for _ in range(length)) for length in lengths]
    by_split = parts(documents)
    seen = [set("".join(by_split[split])) for split in Split]
    assert "".join(sorted("".join(pieces(documents)))) == "".join(documents)
    assert set().union(*seen) == set("".join(documents))
    assert sum(map(len, seen)) == sum(lengths)  # so that no two have a character in common
    inside = [any(piece in document for document in documents) for texts in by_split.values() for piece in texts]
    assert all(inside)


def test_a_long_text_is_held_out_in_stretches_spread_evenly() -> None:
    text = "".join(chr(0x100 + n % 50_000) for n in range(1_000_000))
    cut = [*pieces([text])]
    assert "".join(cut) == text
    assert max(map(len, cut)) <= LONGEST
    shares = Counter(split_of(number) for number in range(1600))
    assert shares == {Split.TRAINING: 1400, Split.VALIDATION: 100, Split.TEST: 100}
    held = [number for number in range(1600) if split_of(number) is Split.VALIDATION]
    assert {after - before for before, after in pairwise(held)} == {16}


# --- tokens


def test_counts_of_characters_are_exact_and_rare_ones_are_dropped(tmp_path: Path) -> None:
    text = "".join(Stories(words=3000).documents())
    corpus = written(tmp_path, text)
    tokenised = tokens(corpus, rare=200)
    cut = parts([text])
    counts = Counter("".join(cut[Split.TRAINING]))
    kept = sorted(character for character, count in counts.items() if count >= 200)
    assert 10 < len(kept) < len(counts)
    assert tokenised.end == len(kept)
    assert list(tokenised.counts) == [*(counts[character] for character in kept), len(cut[Split.TRAINING])]
    assert tokenised.dropped == pytest.approx(
        sum(count for count in counts.values() if count < 200) / (counts.total() + len(cut[Split.TRAINING]))
    )
    for split, numbers in zip(Split, tokenised.stored.arrays, strict=True):
        expected = "".join(
            "".join(character for character in piece if character in kept) + "\0" for piece in cut[split]
        )
        alphabet = [*kept, "\0"]
        assert "".join(alphabet[number] for number in numbers) == expected
        assert tokenised.sizes[split] == len(expected)
        assert numbers.dtype == np.uint16


def test_what_follows_from_counts_is_what_a_counter_says(tmp_path: Path) -> None:
    text = "aab" * 400
    tokenised = tokens(written(tmp_path, text))
    cut = parts([text])[Split.TRAINING]
    counts = Counter("".join(cut) + "\0" * len(cut))
    shares = np.array([*counts.values()]) / counts.total()
    assert tokenised.most_frequent == pytest.approx(counts.most_common(1)[0][1] / counts.total(), rel=1e-12)
    assert tokenised.unigram_perplexity == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-12)
    assert tokenised.dropped == 0


def test_encoding_and_decoding_give_the_text_back_but_for_dropped_tokens(tmp_path: Path) -> None:
    tokenised = tokens(written(tmp_path, "The cat sat. " * 300 + "Zq"), rare=200)
    assert tokenised.decode(tokenised.encode("The cat")) == "The cat"
    assert tokenised.decode(tokenised.encode("Zat q")) == "at "
    lower = tokens(File(path=tokenised.source.corpus.path), rare=200, lower_case=True)  # pyright: ignore
    assert lower.decode(lower.encode("THE Cat")) == "the cat"


def test_texts_are_lowered_character_by_character_as_a_written_tokenizer_lowers_them(tmp_path: Path) -> None:
    every = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    assert lowered(f"ΔΡΟΜΟΣ ΣΑΣ. {every}") == "".join(map(str.lower, f"ΔΡΟΜΟΣ ΣΑΣ. {every}"))
    greek = tokens(written(tmp_path, "ο ΔΡΟΜΟΣ και ο λόγος, İstanbul\n" * 200), lower_case=True)
    assert greek.decode(greek.encode("ΔΡΟΜΟΣ λόγος")) == "δρομοσ λόγος"
    read = library().Tokenizer.from_str(greek.file()[0])  # pyright: ignore
    for text in ("ΔΡΟΜΟΣ", "ΔΡΟΜΟΣ και", "λόγος", "İstanbul"):
        assert read.encode(text).ids == [greek.kept[token] for token in greek.encode(text)]


def test_tokens_that_cannot_be_made_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"^task.rare: 9999 leaves no token, the most frequent one occurs \d+ times$"):
        tokens(written(tmp_path, "abc " * 500), rare=9999)
    for number, text in enumerate(("", "abc")):
        with pytest.raises(PluginError, match="too little text"):
            tokens(written(tmp_path, text, f"{number}.txt"))


# --- byte pairs


def by_hand(merges: Sequence[tuple[str, str]], word: Sequence[str]) -> list[str]:
    """Return a word's tokens: the pair that was learned first is joined, as often as there is one."""
    parts_of_word = list(word)
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    while True:
        known = [(ranks[pair], index) for index, pair in enumerate(pairwise(parts_of_word)) if pair in ranks]
        if not known:
            return parts_of_word
        _, index = min(known)
        parts_of_word[index : index + 2] = ["".join(parts_of_word[index : index + 2])]


def test_byte_pairs_are_those_of_the_textbook() -> None:
    tokenizer = BytePairEncoding(vocabulary=266)
    learned = tokenizer.learn([SENTENCES])
    model = json.loads(learned)["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    words = Counter(re.findall(r" ?\w+", SENTENCES))
    counts: Counter[tuple[str, str]] = Counter()
    for word, count in words.items():
        for pair in pairwise(word.replace(" ", "Ġ")):
            counts[pair] += count
    assert counts[merges[0]] == max(counts.values())
    assert len(model["vocab"]) == 266
    assert "est" in model["vocab"]
    names = {number: name for name, number in model["vocab"].items()}
    encoder = tokenizer.encoder(learned)
    text = "lowest newer widow low"
    expected = [token for word in re.findall(r" ?\w+", text) for token in by_hand(merges, word.replace(" ", "Ġ"))]
    assert [names[number] for number in encoder.encode(text)] == expected


@settings(max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_byte_pairs_give_every_text_back(text: str) -> None:
    encoder = ENCODER
    numbers = encoder.encode(text)
    assert encoder.decode(numbers) == text
    assert all(0 <= token < encoder.size for token in numbers)


ENCODER = BytePairEncoding(vocabulary=300).encoder(BytePairEncoding(vocabulary=300).learn([SENTENCES]))


def test_byte_pairs_are_the_same_in_every_process() -> None:
    program = (
        "from workers.data.tokenizers.bpe import BytePairEncoding\nfrom workers.data.corpora.stories import Stories\n"
        "print(hash_of([BytePairEncoding(vocabulary=700).learn(Stories(words=4000).documents()).encode()]))"
    )
    program = f"from workers.data.hashing import hash_of\n{program}"
    hashes = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


def test_a_tokenizer_can_come_from_a_file_or_from_gpt_2s_two_files(tmp_path: Path) -> None:
    learned = BytePairEncoding(vocabulary=280).learn([SENTENCES])
    model = json.loads(learned)["model"]
    (tmp_path / "tokenizer.json").write_text(learned)
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    pairs = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + pairs)
    expected = BytePairEncoding().encoder(learned).encode("lowest newest")
    for path in (tmp_path / "tokenizer.json", tmp_path):
        file = BytePairFile(path=find_file(str(path)))
        assert file.encoder(file.learn([])).encode("lowest newest") == expected
    before = BytePairFile(path=find_file(str(tmp_path))).content()
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert BytePairFile(path=find_file(str(tmp_path))).content() != before


def test_a_file_that_cuts_texts_and_fills_them_up_does_neither_here(tmp_path: Path) -> None:
    learned = BytePairEncoding(vocabulary=280).learn([SENTENCES])
    (tmp_path / "plain.json").write_text(learned)
    cutting = library().Tokenizer.from_str(learned)
    cutting.enable_truncation(max_length=4)
    cutting.enable_padding(length=40)
    cutting.save(str(tmp_path / "cutting.json"))
    plain, other = (BytePairFile(path=find_file(str(tmp_path / f"{name}.json"))) for name in ("plain", "cutting"))
    expected, encoder = plain.encoder(plain.learn([])), other.encoder(other.learn([]))
    for text in ("low", SENTENCES):
        assert encoder.encode(text) == expected.encode(text)
    assert isinstance(encoder, HasFile)
    assert isinstance(expected, HasFile)
    assert encoder.file() == expected.file()
    # Tokens that were cached with texts cut are not found again; those of other files are.
    contents = [[file.content(), hash_of([Path(file.path).read_bytes()])] for file in (plain, other)]
    assert [content == of_bytes for content, of_bytes in contents] == [True, False]


def test_a_written_tokenizer_adds_no_tokens_to_a_text_as_the_task_adds_none(tmp_path: Path) -> None:
    adding = library().Tokenizer.from_str(BytePairEncoding(vocabulary=280).learn([SENTENCES]))
    adding.add_special_tokens(["<s>"])
    adding.post_processor = import_module("tokenizers.processors").TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", adding.token_to_id("<s>"))]
    )
    adding.save(str(tmp_path / "adding.json"))
    file = BytePairFile(path=find_file(str(tmp_path / "adding.json")))
    encoder = file.encoder(file.learn([]))
    assert isinstance(encoder, HasFile)
    written = library().Tokenizer.from_str(encoder.file()[0])
    assert written.encode("low <s> lowest").ids == encoder.encode("low <s> lowest")
    assert adding.encode("low").ids == [adding.token_to_id("<s>"), *encoder.encode("low")]


def test_byte_pairs_refuse_half_a_character_in_one_line_and_characters_take_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(BytePairEncoding(vocabulary=280).learn([SENTENCES]))
    lines = [json.dumps({"text": f"low \ud83d lowest {SENTENCES}"})] * 100
    corpus = written(tmp_path, "\n".join(lines), "half.jsonl")
    for tokenizer in (BytePairEncoding(vocabulary=280), BytePairFile(path=find_file(str(tmp_path / "tokenizer.json")))):
        with pytest.raises(PluginError) as error:
            tokens(corpus, tokenizer)
        assert r"'low \ud83d lowest low low low ' has half of one, '\ud83d'" in one_line(error)
    assert tokens(corpus).decode(tokens(corpus).encode("low \ud83d")) == "low \ud83d"


def test_a_file_whose_tokens_leave_gaps_between_their_numbers_is_refused_in_one_line(tmp_path: Path) -> None:
    """The number after the last token is that of the end, so numbers have to go up one by one."""
    learned = json.loads(BytePairEncoding(vocabulary=280).learn([SENTENCES]))
    vocabulary = learned["model"]["vocab"]
    learned["model"]["vocab"] = {token: number + (number >= 7) for token, number in vocabulary.items()}
    (tmp_path / "gap.json").write_text(json.dumps(learned))
    with pytest.raises(PluginError) as error:
        tokens(written(tmp_path, SENTENCES * 100), BytePairFile(path=find_file(str(tmp_path / "gap.json"))))
    expected = f"gap.json' has {len(vocabulary)} tokens, but none with the number 7; their numbers must be 0, 1"
    assert expected in one_line(error)


def test_a_tokenizer_that_is_not_there_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(PluginError, match=r"must be a tokenizer.json, or a folder with vocab.json and merges.txt"):
        BytePairFile(path=find_file(str(tmp_path))).learn([])
    with pytest.raises(PluginError) as error:
        BytePairFile(path=find_file(str(tmp_path / "bad.json"))).learn([])
    assert "is no tokenizer" in one_line(error)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(PluginError) as error:
        BytePairEncoding().learn([SENTENCES])
    assert "graft-search[language]" in one_line(error)


# --- on disk


@settings(max_examples=30)
@given(
    arrays=st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=50), min_size=1, max_size=3),
    wide=st.booleans(),
    note=st.text(max_size=20),
)
def test_arrays_come_back_from_disk(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[list[int]], wide: bool, note: str
) -> None:
    path = tmp_path_factory.mktemp("store") / "inner" / "a.tokens"
    content = Stored({"note": note}, [np.array(numbers, dtype=np.uint32 if wide else np.uint16) for numbers in arrays])
    write(path, content)
    stored = read(path)
    assert stored is not None
    assert stored.notes == {"note": note}
    assert [array.tolist() for array in stored.arrays] == arrays
    assert {array.dtype for array in stored.arrays} == {content.arrays[0].dtype}
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[:40],
        lambda whole: b"",
        lambda whole: b"\n" + whole,
        lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
        lambda whole: whole.replace(b'"note": 1', b'"note": 2'),
        lambda whole: whole.replace(b"uint16", b"object"),
        lambda whole: b"[" * 100_000 + whole,
        lambda whole: b"{}\n" + whole,
    ],
)
def test_a_broken_file_is_none(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    write(tmp_path / "a.tokens", Stored({"note": 1}, [np.arange(100, dtype=np.uint16)]))
    whole = (tmp_path / "a.tokens").read_bytes()
    assert read(tmp_path / "a.tokens") is not None
    (tmp_path / "a.tokens").write_bytes(change(whole))
    assert read(tmp_path / "a.tokens") is None


def test_tokens_are_made_once_and_anew_where_the_file_is_broken(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = written(tmp_path, "some text of some length " * 100)
    expected = [array.tolist() for array in tokens(corpus).stored.arrays]
    [file] = cache.iterdir()
    made: list[File] = []

    def documents(self: File) -> Iterator[str]:
        made.append(self)
        yield (tmp_path / "text.txt").read_text()

    monkeypatch.setattr(File, "documents", documents)
    tokens_of.cache_clear()
    assert [array.tolist() for array in tokens(corpus).stored.arrays] == expected
    assert not made
    file.write_bytes(file.read_bytes()[:-3])
    tokens_of.cache_clear()
    assert [array.tolist() for array in tokens(corpus).stored.arrays] == expected
    assert len(made) == 1
    assert read(file) is not None


def test_other_settings_or_another_text_are_another_file(tmp_path: Path, cache: Path) -> None:
    text = "some text of Some length " * 100
    corpus = written(tmp_path, text)
    for settings_of in ({}, {"rare": 2}, {"lower_case": True}, {"tokenizer": BytePairEncoding(vocabulary=260)}):
        tokens(corpus, **settings_of)
    tokens(written(tmp_path, text + "!"))
    assert len([*cache.iterdir()]) == 5


def test_a_home_that_cannot_be_written_costs_nothing_but_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wall").write_text("a file where a folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "wall"))
    assert cache_folder() == tmp_path / "wall" / "graft"
    assert tokens(written(tmp_path, "some text " * 100)).end == len(set("some text "))


@pytest.mark.long
def test_several_processes_may_make_the_same_tokens_at_once(cache: Path) -> None:
    program = """
from workers.data.corpora._tokens import Source, tokens_of
from workers.data.corpora.stories import Stories
from workers.data.tokenizers.character import Character
found = tokens_of(Source(corpus=Stories(words=20_000), tokenizer=Character(), rare=1, lower_case=False))
print(found.content, sum(int(one.sum()) for one in found.stored.arrays))
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in running]
    assert len(set(said)) == 1
    assert said[0].strip()
    assert len([*cache.iterdir()]) == 1
