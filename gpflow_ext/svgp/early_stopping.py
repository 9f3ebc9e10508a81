"""Early stopping: keep the state with the best score on held-out data; stop when it improves no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from gpflow_ext.svgp.minibatch_ascent import MinibatchAscent
from gpflow_ext.training.solver import Progress


class EarlyStopping(tf.Module):
    """Watches a score, the lower the better; its state is in variables that a checkpoint can hold.

    Parameters
    ----------
    score
        Returns the score of the current state.
    variables
        What the score depends on; a copy of the best ones is kept.
    patience
        Number of evaluations without improvement after which to stop; ``None`` never stops.
    """

    def __init__(
        self, score: Callable[[], float], variables: Sequence[tf.Variable], patience: int | None
    ) -> None:
        super().__init__()
        self._score, self._watched, self._patience = score, list(variables), patience
        self.best = tf.Variable(np.inf, dtype=tf.float64, trainable=False)
        self.last = tf.Variable(np.nan, dtype=tf.float64, trainable=False)
        self.waited = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.kept = [tf.Variable(variable, trainable=False) for variable in variables]

    def evaluate(self) -> bool:
        """Take the score; return whether the patience has run out."""
        score = self._score()
        self.last.assign(score)
        if score < float(self.best):
            self.best.assign(score)
            self.waited.assign(0)
            for copy, variable in zip(self.kept, self._watched, strict=True):
                copy.assign(variable)
        else:
            self.waited.assign_add(1)
        return self._patience is not None and int(self.waited) >= self._patience

    def restore_best(self) -> None:
        """Return to the best state, if there has been an evaluation."""
        if np.isfinite(float(self.best)):
            for copy, variable in zip(self.kept, self._watched, strict=True):
                variable.assign(copy)

    def finish(self) -> bool:
        """Return to the best state, see `training.recipe.Plan`: checkpoints hold it."""
        self.restore_best()
        return False


class Watched:
    """A solver that is at rest when the score on held-out data has not improved for long enough.

    Parameters
    ----------
    engine
        Does the steps.
    watch
        Takes the score.
    every
        Steps between two scores.
    """

    def __init__(self, engine: MinibatchAscent, watch: EarlyStopping, every: int) -> None:
        self._engine, self._watch, self._every = engine, watch, every

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return self._engine.state

    def start(self) -> Progress:
        """See `Solver`; the whole patience is left again."""
        self._watch.waited.assign(0)
        return self._engine.start()

    def step(self) -> Progress:
        """See `Solver`; the violation is infinite until the patience has run out."""
        value = self._engine.step().objective
        due = int(self._engine.steps) % self._every == 0 and math.isfinite(value)
        return Progress(value, 0.0 if due and self._watch.evaluate() else math.inf)
