"""Runs by small steps without a number of them: they go on while the objective rises, for some seconds."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.training.deadline import Deadline
from gpflow_ext.training.line import Line, most

SECONDS = 60.0  # after which a run is not prolonged that was given neither steps nor seconds
_SHARE = 3  # of the first steps, one in so many is looked at, the last ones
_GROWTH = 2  # a run is prolonged by one step for so many done
_FEWEST = 10  # steps that are looked at


class UntilSettled(tf.Module):
    """Looks whether a run has settled, first after some steps, then whenever it is longer by a half.

    It has where the line through the objectives since the last look, at the first one through those of the
    last third, does not rise, and has too little noise to hide a rise; see `Line`. A checkpoint that holds
    the sums makes a restarted run end where the uninterrupted one does.

    Parameters
    ----------
    steps
        Number of the step after which it looks first.
    period
        Steps of a pass through the data.

    Attributes
    ----------
    look
        Number of the step after which it looks next.
    """

    def __init__(self, steps: int, period: int = 1) -> None:
        super().__init__()
        with tf.device("CPU"):  # the host writes them at each step
            self.sums = tf.Variable(Line(), dtype=tf.float64, trainable=False)
        self._begin, self.look, self._period = steps - max(_FEWEST, steps // _SHARE), steps, period
        self._line = Line()

    def resume(self, step: int) -> None:
        """Go on from a step, with the sums that a checkpoint may have restored."""
        while self.look < step:
            self._next()
        self._line = Line(*self.sums.numpy().tolist())

    def __call__(self, step: int, objective: float) -> None:
        """See `loop.Callback`."""
        if step > self._begin:
            self._line = self._line.extended(objective, most(self._period, self.look - self._begin))
            self.sums.assign(self._line, read_value=False)

    def further(self, deadline: Deadline) -> int:
        """Return the number of the last step from here on: the same where the run has settled.

        An endless deadline then comes after `SECONDS`.
        """
        if self._line.may_rise:
            deadline.limit(SECONDS)
            self._next()
        return self.look

    def _next(self) -> None:
        self._begin, self.look = self.look, self.look + max(_FEWEST, self.look // _GROWTH)
        self._line = Line()
