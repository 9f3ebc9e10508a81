"""Coordinates in which chains move, for ``gpflow_ext.sample(precondition=...)``.

Each is an object with the protocol `Coordinates`: given what is sampled, it returns the density in its
coordinates and maps standard normals to where the chains start. Your own need nothing else.
"""

from __future__ import annotations

from gpflow_ext.sampling.affine import Affine
from gpflow_ext.sampling.coordinates.freeform import VB, Conditional, Joint, Rescaled
from gpflow_ext.sampling.coordinates.general import Fisher, Whitened
from gpflow_ext.sampling.sampleable import Coordinates, Kind, Placed, Sampleable
from gpflow_ext.sampling.target import Target

__all__ = [
    "NAMED",
    "VB",
    "Affine",
    "Conditional",
    "Coordinates",
    "Fisher",
    "Joint",
    "Placed",
    "Rescaled",
    "Target",
    "Whitened",
    "coordinates_from",
]

NAMED: dict[str, Coordinates] = {
    each.name: each for each in (Whitened(), VB(), Conditional(), Joint(), Rescaled(), Fisher())
}
"""By the names that ``precondition`` takes."""


def coordinates_from(given: Coordinates | str | None, sampled: Sampleable, kind: Kind) -> Coordinates:
    """Return the coordinates that ``precondition`` stands for.

    Parameters
    ----------
    given
        An object, a name of `NAMED`, ``"auto"`` for the best that the model knows, or ``None`` for the
        whitened ones.
    sampled
        What is sampled.
    kind
        Kind of the sampler.

    Raises
    ------
    ValueError
        For what is neither, or does not fit what is sampled or the sampler.
    """
    found = sampled.coordinates(kind) if given == "auto" else given
    if found is None:
        found = NAMED["whitened"]
    if isinstance(found, str):
        found = NAMED.get(found)
    if not isinstance(found, Coordinates) or isinstance(found, type):
        names = ", ".join(map(repr, ("auto", *NAMED)))
        raise ValueError(
            f"Unknown precondition {given!r}: give one of {names}, None, or an object such as "
            "gpflow_ext.coordinates.VB()."
        )
    found.check(sampled, kind)
    return found
