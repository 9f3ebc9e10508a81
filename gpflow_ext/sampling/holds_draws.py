"""Models that hold draws of their parameters and predict from them."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf

from gpflow_ext.data import held
from gpflow_ext.numerics import stacked
from gpflow_ext.sampling.draws import Draws


class HoldsDraws:
    """Mixin of models that average over draws of V and of hyperparameters, to be their first base.

    Attributes
    ----------
    draw_names, draw_values
        What was drawn, and its draws, [S, *shape] each.
    """

    draw_names: tuple[str, ...] = ()
    draw_values: list[tf.Variable]

    def assign_draws(self, draws: Draws | None, most: int | None = 200) -> None:
        """Store draws: from now on predictions average over them.

        Parameters
        ----------
        draws
            What `gpflow_ext.sample` returned for this model; ``None`` removes those that are held.
        most
            Number of evenly spaced draws from all chains to hold, at least 1; ``None`` holds all.

        Raises
        ------
        ValueError
            For draws of another model, or what is no `Draws`.
        """
        if not isinstance(draws, Draws | None):
            raise ValueError(
                "`draws` must be what one call of `gpflow_ext.sample` returned, or None; got "
                f"{type(draws).__name__}."
            )
        given = {} if draws is None else draws.flat(most)
        if given and (
            set(given) - {"V", *self._named()} or given.get("V", tf.zeros([])).shape[1:] != self._shape_of_V()
        ):
            raise ValueError(f"These are draws of another model: they hold {', '.join(given)}.")
        if "draw_names" in vars(self):
            del self.draw_names  # without draws a model is described as one that never had any
        if given:
            self.draw_names = tuple(given)
        self.draw_values = [
            tf.Variable(tf.cast(value, gpflow.default_float()), trainable=False) for value in given.values()
        ]

    def _shape_of_V(self) -> tf.TensorShape:
        """Return the shape of one draw of V."""
        raise NotImplementedError

    def _named(self) -> dict[str, gpflow.Parameter]:
        """Return the parameters by their names."""
        return {name.lstrip("."): part for name, part in gpflow.utilities.parameter_dict(self).items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy; frozen, what was drawn is still a parameter, so that draws can take its place."""
        named = self._named() if self.draw_names else {}
        for part in (named[name] for name in self.draw_names if name in named):
            frozen = memo.get(id(part))
            if tf.is_tensor(frozen) and not isinstance(frozen, gpflow.Parameter):
                memo[id(part)] = stacked.Frozen(part, frozen)
        return held.copied(self, memo)
