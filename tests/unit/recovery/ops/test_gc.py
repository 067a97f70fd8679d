"""One run that cannot be removed does not keep the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.files.posix import OSFiles
from recovery import CheckpointStore, RecoverableAgent
from recovery.ops.gc import gc
from recovery.stores.file import FileStore
from tests.support.lives import refuse_deletion


def test_a_run_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    for run_id in ("a", "b", "c"):
        RecoverableAgent(lambda run: 1, store).run_with_recovery_sync("t", run_id)
    remove = FileStore.remove

    def refusing(self: FileStore, run_id: str, at: int | None = None) -> None:
        if run_id == "a":
            raise PermissionError(13, "Permission denied")
        remove(self, run_id, at)

    monkeypatch.setattr(FileStore, "remove", refusing)
    with pytest.raises(OSError, match=r"run a could not be removed: Permission denied.*removed: 2"):
        gc(store, keep=0)
    assert store.backend.run_ids() == ["a"]


def test_remains_that_cannot_be_deleted_do_not_keep_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    for run_id in ("a", "b"):
        RecoverableAgent(lambda run: 1, store).run_with_recovery_sync("t", run_id)
    (tmp_path / "a").rename(tmp_path / ".a.removed-0123abcd")
    refuse_deletion(monkeypatch, OSFiles, ".a.")
    for keep, number in ((None, 0), (0, 1), (0, 0)):
        with pytest.raises(PermissionError, match=rf"left could not .*removed: {number}") as caught:
            gc(store, keep=keep)
        assert Path(caught.value.filename).name.startswith(".a.removed-")
    assert store.backend.run_ids() == []
