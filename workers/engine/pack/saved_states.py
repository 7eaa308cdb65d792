"""Saved states: a pack's part of a checkpoint, and the checkpoint that a trial resumes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spaces.records import Trial
from workers.engine.checkpoints import SavedState, SavedTrial, Snapshot
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.lanes import Lanes

ReadSnapshot = Callable[[str, str], Snapshot | None]
"""Reads a file by its path and its SHA-256; None if it is not whole."""


def take_snapshot(structure: str, lanes: Lanes, tensors: LaneTensors, study: int) -> Snapshot | None:
    """Return the states of a study's trials that have trained since they were placed, if any."""
    saved = [(at, trial) for at, trial in lanes.occupied if trial.study == study and trial.has_trained]
    if not saved:
        return None
    indices = [index for index, _ in saved]
    return Snapshot(
        structure=structure,
        trials=[SavedTrial(trial.number, trial.fence, trial.step, trial.reported_step) for _, trial in saved],
        tensors={name: stacked.cpu()[indices] for name, stacked in tensors.named_state().items()},
    )


def find_saved_state(
    trial: Trial, structure: str, tensors: LaneTensors, read_snapshot: ReadSnapshot
) -> SavedState | None:
    """Return the newest state of the trial that is whole and fits a lane of this pack, if any.

    A file may be another version's, or of a structure that only looks alike. A state that does not
    fit must never be half written into a lane, so that all shapes and types are compared first.
    """
    stacked = tensors.named_state()
    for checkpoint in trial.checkpoints:  # the newest first
        snapshot = read_snapshot(checkpoint.path, checkpoint.sha256)
        if snapshot is None or not snapshot.is_of(structure) or checkpoint.number != trial.number:
            continue
        saved = snapshot.state(checkpoint)
        if saved and _fits(saved.tensors, stacked):
            return saved
    return None


def _fits(saved: Mapping[str, Tensor], stacked: Mapping[str, Tensor]) -> bool:
    """Return True if a saved state has the shapes and types of a lane of these stacked tensors.

    Averages and second moments had the parameters' precision in numerics 1; float64 holds it.
    """

    def fits(name: str, tensor: Tensor) -> bool:
        wanted = stacked[name]
        widened = name.startswith(("moments.", "shadow.")) and wanted.dtype == torch.float64
        same = tensor.dtype == wanted.dtype or (widened and tensor.dtype == torch.float32)
        return same and tensor.shape == wanted.shape[1:]

    return saved.keys() == stacked.keys() and all(fits(name, tensor) for name, tensor in saved.items())
