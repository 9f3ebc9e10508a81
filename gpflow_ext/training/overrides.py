"""Methods of a user's own class, which stand in place of those of its base in GPflow or in this package."""

from __future__ import annotations

from typing import Any

from gpflow_ext.data.own_parts import of_a_library

OBJECTIVES = ("elbo", "maximum_log_likelihood_objective", "_training_loss", "training_loss")


def overrides(model: Any, name: str) -> bool:
    """Tell whether a model has a method in place of that of its nearest known class, if this has one."""
    known = _inherited(model, name)
    return known is not None and _function(model, name) is not known


def inherits(model: Any, name: str) -> bool:
    """Tell whether a method of a model is that of its nearest known class."""
    known = _inherited(model, name)
    return known is not None and _function(model, name) is known


def own_objective(model: Any) -> str | None:
    """Return the name of the first objective that a model overrides, if there is one."""
    return next((name for name in OBJECTIVES if overrides(model, name)), None)


def refuse_own_objective(model: Any, recipe: str) -> None:
    """Raise ``ValueError`` for a model with an objective of its own, which a recipe would pass over."""
    if (own := own_objective(model)) is not None:
        raise ValueError(
            f"{type(model).__name__} has {own!r} of its own, which recipe={recipe!r} would not maximise: "
            'give recipe="lbfgs" or "adam", which maximise `maximum_log_likelihood_objective`, or a recipe '
            "of your own, by gpflow_ext.register."
        )


def _inherited(model: Any, name: str) -> Any:
    """Return the method of the nearest class of GPflow or this package; ``None`` if it defines none."""
    known = next(filter(of_a_library, type(model).__mro__), object)
    found = getattr(known, name, None)
    return None if getattr(found, "__isabstractmethod__", False) else found


def _function(model: Any, name: str) -> Any:
    return getattr(getattr(model, name), "__func__", None)
