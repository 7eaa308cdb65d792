"""The contract of corpora."""

from __future__ import annotations

from itertools import islice

from graft.testing.common import Configuration, DoesNotApply, build
from spaces import plugins
from workers.data.corpora import Corpus


def check_documents(configuration: Configuration) -> None:
    """Assert that documents are the same each time and for equal corpora, and end with a line."""
    corpus: Corpus = build("corpus", configuration)
    if corpus.needs_network:
        raise DoesNotApply("its documents come from elsewhere")
    first, second = (list(islice(corpus.documents(), 8)) for _ in range(2))
    assert first, "it has no document"
    assert first == second, "the second time it gives other documents"
    assert all(isinstance(document, str) and "\n" in document for document in first), "a document has no line"
    again: Corpus = build("corpus", plugins.config_of(corpus))
    assert corpus.content() == again.content(), "an equal corpus has another content()"
