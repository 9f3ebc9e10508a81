"""Checkpoints from which a run resumes exactly, and which refuse to restore into another model."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from .durable import sync, sync_alone, told
from .manifest import check_same, describe, fixed_values, plain, read_json, write_json, write_text
from .record import write_record
from .verify import as_path

_INDEX = re.compile(r"ckpt-(\d+)\.index")
_SHARD = re.compile(r"(ckpt-\d+)\.data-\d+-of-\d+")
_FINISHED = re.compile(r"finished-(\d+)\.(?:index|data-\d+-of-\d+)")
_PATTERN = re.compile(r"\\|\[[^/]*\]")
_PARTS = tuple(f"{kind}-*{part}" for kind in ("ckpt", "finished") for part in ("_temp*", ".tempstate*"))
_LITTER = (*_PARTS, "checkpoint.tmp*", "manifest.json.tmp", "model.*.tmp")
MANIFEST = "manifest.json"


class Checkpoints:
    """Checkpoints of a model and of everything else that a run needs to resume as if it had never stopped.

    The folder holds what ``tf.train.CheckpointManager`` writes, ``ckpt-<step>.*``, and a ``manifest.json``
    that describes the model, the data and the run; `gpflow_ext.load_checkpoint` rebuilds the model from
    ``model.json`` and ``model.npz``. One process at a time may use a folder.

    A run resumes exactly only if everything that changes is given here: the optimiser (with its slots built:
    ``optimizer.build(model.trainable_variables)``) and the iterator over minibatches as well as the model.

    Parameters
    ----------
    directory
        The folder, created when missing.
    model
        Any GPflow model.
    max_to_keep
        Number of checkpoints to keep; older ones are removed.
    training
        Settings that a resumed run must share, as plain values: optimiser, minibatch size, seed.
    data
        The training arrays, when the model does not hold them; their hash goes into the manifest.
    **trackables
        Further objects to save, by name: ``optimizer=``, ``iterator=``, a ``tf.Variable``.

    Raises
    ------
    ValueError
        If the folder holds checkpoints but no manifest, a name is taken, or TensorFlow cannot read from a
        folder of that name.

    Examples
    --------
    >>> checkpoints = Checkpoints("runs/one", model, optimizer=optimizer, iterator=batches)
    >>> for step in range(checkpoints.restore_latest() or 0, 1000):
    ...     optimizer.minimize(lambda: model.training_loss(next(batches)), model.trainable_variables)
    ...     if (step + 1) % 100 == 0:
    ...         checkpoints.save(step + 1)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: tf.Module,
        *,
        max_to_keep: int = 3,
        training: Mapping[str, Any] | None = None,
        data: Sequence[Any] | None = None,
        **trackables: Any,
    ) -> None:
        if "saved_step" in trackables:
            raise ValueError(
                "the name 'saved_step' is used by Checkpoints itself: give the variable another name"
            )
        self._directory = readable_folder(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._model, self._data, self._max_to_keep = model, data, max_to_keep
        kinds = {name: type(value).__name__ for name, value in sorted(trackables.items())}
        self._run = plain({"training": training or {}, "trackables": kinds, "fixed": fixed_values(model)})
        self._saved_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._checkpoint = tf.train.Checkpoint(model=model, saved_step=self._saved_step, **trackables)
        self._counter = self._checkpoint.save_counter  # made now: TensorFlow would make it at the first save
        self._at: int | None = None  # the step that the variables and the newest checkpoint agree on
        self._sweep()
        if self.steps and not self._manifest.exists():
            raise ValueError(
                f"{self._directory} holds checkpoints but no {MANIFEST}, so nothing tells which model "
                "they belong to: choose an empty folder"
            )
        self._manager = self._open_manager()

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in increasing order."""
        return steps_in(self._directory)

    def save(self, step: int | tf.Variable) -> Path:
        """Write a checkpoint and return its prefix.

        Raises
        ------
        ValueError
            If the step is not beyond the last one, or the folder holds another run's checkpoints.
        OSError
            If the disk is full, or the folder cannot be written; it says what is left.
        """
        step, newest = int(step), max(self.steps, default=None)
        if newest != self._at:
            raise ValueError(
                f"{self._directory} already holds a checkpoint of step {newest} that this run has not "
                "restored: call restore_latest() first, or choose an empty folder"
            )
        kept = (
            "There is no checkpoint yet." if newest is None else f"The checkpoint of step {newest} is whole."
        )
        with told(f"The checkpoint of step {step}", self._directory, kept):
            prefix = self._write(step)
        self._at = step
        return prefix

    def _write(self, step: int) -> Path:
        if self._at is None:
            record = write_record(self._directory, self._model)
            # First, so that no checkpoint is ever without one.
            write_json(self._manifest, {**self._describe(), "record": record})
        elif step <= self._at:
            raise ValueError(f"step must grow from one checkpoint to the next; seen {step} after {self._at}")
        self._saved_step.assign(step)
        prefix = Path(self._manager.save(checkpoint_number=step))
        self._sync(prefix, self._directory / "checkpoint")
        self._remove_finished(step)
        return prefix

    def save_finished(self) -> Path:
        """Write what the run has made of the model after its newest step, and return its prefix.

        `gpflow_ext.load_checkpoint` gives this model. A run that goes on resumes from the checkpoint of the
        step, and what it saves next takes the place of this.

        Raises
        ------
        ValueError
            If this run has not saved or restored the newest step.
        OSError
            See `save`.
        """
        step = max(self.steps, default=None)
        if step is None or step != self._at:
            raise ValueError(f"this run has no checkpoint in {self._directory}: call save() first")
        prefix = _finished(self._directory, step)
        self._remove_finished()  # else a kill might leave the parts of two
        kept = f"The checkpoint of step {step} is whole."
        with told(f"The model after step {step}", self._directory, kept):
            tf.train.Checkpoint(model=self._model).write(str(prefix))
            self._sync(prefix)
        return prefix

    def _remove_finished(self, but: int | None = None) -> None:
        for path in self._directory.iterdir():
            if (found := _FINISHED.fullmatch(path.name)) and int(found[1]) != but:
                path.unlink()

    def _sync(self, prefix: Path, *others: Path) -> None:
        for file in (*self._directory.glob(f"{prefix.name}.*"), *others):
            sync(file)
        sync_alone(self._directory)

    def restore_latest(self) -> int | None:
        """Restore the newest readable checkpoint and return its step, or ``None`` if there is none.

        The manifest and every checksum are verified before any variable is touched. A checkpoint that cannot
        be read (the process was killed while it was written) is moved into the folder ``unreadable``, with a
        warning, and the one before it is used.

        Raises
        ------
        ValueError
            If the checkpoints belong to another model or run, or if none of them or no manifest can be read.
        """
        if not self.steps:
            return None
        saved = read_json(self._manifest)
        saved.pop("record", None)
        check_same(saved, self._describe())
        step, damaged = newest_readable(self._directory)
        self._restore(step)
        self._set_aside(damaged, step)
        return step

    @property
    def _manifest(self) -> Path:
        return self._directory / MANIFEST

    def _prefix(self, step: int) -> Path:
        return prefix_of(self._directory, step)

    def _describe(self) -> dict[str, Any]:
        return {**describe(self._model, self._data), **self._run}

    def _restore(self, step: int) -> None:
        prefix = str(self._prefix(step))
        _, missing, extra = tf.train.CheckpointView(prefix).diff(self._checkpoint)
        if missing or extra:
            raise ValueError(
                f"the checkpoint of step {step} holds {len(missing)} objects that this run lacks, and lacks "
                f"{len(extra)} that it has. Build the optimiser's slots before saving and before restoring: "
                "optimizer.build(model.trainable_variables)"
            )
        self._checkpoint.restore(prefix).assert_consumed()
        self._at = step

    def _set_aside(self, damaged: Mapping[int, str], restored: int) -> None:
        for step, reason in damaged.items():
            aside = self._directory / "unreadable"
            aside.mkdir(exist_ok=True)
            for path in self._directory.glob(f"ckpt-{step}.*"):
                os.replace(path, aside / path.name)
            warnings.warn(
                f"the checkpoint of step {step} cannot be read ({reason}); restored step {restored} instead "
                f"and moved the unreadable files to {aside}",
                RuntimeWarning,
                stacklevel=3,
            )
        if damaged:
            self._manager = self._open_manager()

    def _open_manager(self) -> tf.train.CheckpointManager:
        # The state file may lag behind the files after a kill: what lies in the folder decides.
        names = [self._prefix(step).name for step in self.steps]
        if names:
            state = tf.compat.v1.train.generate_checkpoint_state_proto(
                str(self._directory),
                model_checkpoint_path=names[-1],
                all_model_checkpoint_paths=names,
                all_model_checkpoint_timestamps=[
                    (self._directory / f"{name}.index").stat().st_mtime for name in names
                ],
                last_preserved_timestamp=0.0,
            )
            write_text(self._directory / "checkpoint", str(state))
        return tf.train.CheckpointManager(self._checkpoint, str(self._directory), self._max_to_keep)

    def _sweep(self) -> None:
        """Remove what a killed process has left: temporary files, and shards without an index."""
        litter = [path for pattern in _LITTER for path in self._directory.glob(pattern)]
        complete = {f"ckpt-{step}" for step in self.steps}
        for path in self._directory.iterdir():
            shard = _SHARD.fullmatch(path.name)
            if shard and shard[1] not in complete:
                litter.append(path)
        for path in litter:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def readable_folder(directory: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder from which TensorFlow can read what it writes there.

    Raises
    ------
    ValueError
        For brackets and backslashes in it, which TensorFlow takes for a pattern when it reads, and for a
        file in its place or above it.
    """
    folder = as_path(directory).resolve()
    for path in (folder, *folder.parents):
        if path.is_file():
            raise ValueError(f"{folder} cannot be a folder of checkpoints: {path} is a file.")
    if found := _PATTERN.search(folder.as_posix()):
        raise ValueError(
            f"TensorFlow cannot read checkpoints from {folder}, because of {found[0]!r}: choose a folder "
            "without brackets and backslashes"
        )
    return folder


def steps_in(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in a folder, in increasing order."""
    names = (_INDEX.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in names if match)


def prefix_of(folder: Path, step: int) -> Path:
    """Return what the names of a checkpoint's files begin with."""
    return folder / f"ckpt-{step}"


def model_of(folder: Path, step: int) -> Path:
    """Return the prefix of the model after a step: as the run left it at its end, or as the step did."""
    finished = _finished(folder, step)
    whole = finished.with_name(f"{finished.name}.index").exists() and _damage(finished) is None
    return finished if whole else prefix_of(folder, step)


def _finished(folder: Path, step: int) -> Path:
    return folder / f"finished-{step}"


def newest_readable(folder: Path) -> tuple[int, dict[int, str]]:
    """Return the newest step whose checkpoint can be read, and why later ones cannot.

    Raises
    ------
    ValueError
        If none can be read.
    """
    damaged: dict[int, str] = {}
    for step in reversed(steps_in(folder)):
        reason = _damage(prefix_of(folder, step))
        if reason is None:
            return step, damaged
        damaged[step] = reason
    reasons = "\n".join(f"  step {step}: {reason}" for step, reason in damaged.items())
    raise ValueError(f"no checkpoint in {folder} can be read:\n{reasons}")


def _damage(prefix: Path) -> str | None:
    """Read every tensor, which verifies its checksum; return why that failed, or ``None``."""
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        for (
            name,
            dtype,
        ) in reader.get_variable_to_dtype_map().items():  # the reader cannot give iterator states
            tf.raw_ops.RestoreV2(
                prefix=str(prefix), tensor_names=[name], shape_and_slices=[""], dtypes=[tf.as_dtype(dtype)]
            )
    except tf.errors.PermissionDeniedError:
        raise  # not damaged: another user's file
    except tf.errors.OpError as error:
        return str(error).splitlines()[0]
    return None
