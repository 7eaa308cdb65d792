"""The model card of an exported trial: what it is, how it was made, how to load it."""

from __future__ import annotations

from pathlib import Path

import yaml

from graft.plugins.families import version
from graft.retraining.restored import RestoredTrial

_TEXT = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [graft]
---
# Trial {number} of the study {study}

{written}. Written by Graft {version}:

```sh
search export {study} {number} --to huggingface --variant '{variant}' -o {folder}
```

It comes with the code of its network, which needs {needed} and nothing of Graft:

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{folder}", trust_remote_code=True)
```

Its logits are those of Graft's own model on the machine that wrote it, with one thread and batches of one size.
It keeps no cache of keys and values. {tokens}

## How it was trained

```yaml
{configuration}```

| metric | last value |
|---|---|
{metrics}
"""


def write_card(folder: Path, restored: RestoredTrial, study: str, variant: str, written: object, needed: str) -> None:
    """Write `README.md` in the folder; `written` says in words what was, `needed` its packages."""
    has_tokenizer = (folder / "tokenizer.json").exists()
    last = {name: value for _, *name_parts, value in restored.metrics if (name := "/".join(filter(None, name_parts)))}
    text = _TEXT.format(
        number=restored.trial.number,
        study=study,
        written=written,
        variant=variant,
        needed=needed,
        version=version(),
        folder=folder.resolve().name,  # also of `.`
        tokens=_WITH_TOKENIZER if has_tokenizer else _WITHOUT_TOKENIZER,
        configuration=yaml.safe_dump(dict(restored.trial.config), sort_keys=False),
        metrics="\n".join(f"| {name} | {value} |" for name, value in last.items()),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


_WITH_TOKENIZER = """Load the tokenizer with
`trust_remote_code=True`, too. Tokens that the trial has dropped as too rare get a logit of -10,000,
and are read as the end of a text."""
_WITHOUT_TOKENIZER = """There is no
tokenizer: its tokens are those of its task, and logits at a position are of what the task asks there."""
