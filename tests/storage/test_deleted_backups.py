"""A study that is deleted in a backup: the checkpoint files of the original stay."""

from __future__ import annotations

from pathlib import Path

from graft.launching.checkpoints import folder_of
from graft.launching.editing.administration import delete_study
from graft.launching.enrolling import find_study
from storage.copying import backup
from tests.support.databases import controlled, raw


def test_a_study_that_is_deleted_in_a_backup_leaves_the_files_of_the_original(url: str, tmp_path: Path):
    with controlled(url) as study:
        study.set_checkpoint_url(str(tmp_path))
    folder = tmp_path / folder_of(find_study(url, "study"))
    folder.mkdir()
    file = folder / "inline-0-1234abcd-000001-0123456789abcdef.safetensors"
    file.write_bytes(b"state")
    copied = f"sqlite:///{backup(url, tmp_path / 'backup.db')}"
    assert raw(copied, "SELECT id, name FROM studies") == raw(url, "SELECT id, name FROM studies")
    delete_study(copied, "study")
    assert file.exists()
    delete_study(url, "study")
    assert not folder.exists()
