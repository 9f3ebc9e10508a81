"""How many operations the lowered programs of a step may have, in double precision and for the models of `RUNS`."""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """The size that a program should have, and the size that a test holds it to."""

    wanted: int
    most: int
    reason: str = ""  # why more than is wanted


_ERFC = (
    "It evaluates the expected log likelihood in {} places, at up to 290 operations each. Up to 180 of them are one "
    "complementary error function, which XLA writes out as two rational functions in double precision."
)
BUDGETS: dict[tuple[str, str], Budget] = {
    ("VGPKMM, kernel held", "SiteUpdates.evaluate"): Budget(
        1500, 2410, "Besides a step it has the start of the sites. " + _ERFC.format("six")
    ),
    ("VGPKMM", "SiteUpdates.evaluate"): Budget(
        1500, 2710, "Besides a step it has the start of the sites and the gradient. " + _ERFC.format("six")
    ),
    ("SVGPRobustMax, minibatches", "AscentUpdates.step"): Budget(3000, 2680),
    ("SGPMCFreeForm, vb", "Iterations.run"): Budget(4000, 1680),
    ("GPRNTensor, L-BFGS in the graph", "Climb.go_on"): Budget(2500, 1690),
    ("GPRNTensor, profiled in the graph", "Climb.go_on"): Budget(2500, 2120),
    ("SGPMCFreeForm, approximation in the graph", "Climb.go_on"): Budget(2500, 1290),
}
