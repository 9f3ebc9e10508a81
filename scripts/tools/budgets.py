"""How many operations the lowered programs of a step may have, in double precision and for the models of `RUNS`."""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """The size that a program should have, and the size that a test holds it to."""

    wanted: int
    most: int
    reason: str = ""  # why more than is wanted


_ERFC = (
    "{} evaluations of the expected log likelihood take up to 290 operations each, of which up to 180 are one "
    "complementary error function: XLA has none in double precision and writes out two rational functions."
)
BUDGETS: dict[tuple[str, str], Budget] = {
    ("VGPKMM, kernel held", "SiteUpdates.valued_step"): Budget(1500, 1760, _ERFC.format("Four")),
    ("VGPKMM", "SiteUpdates.evaluate"): Budget(
        1500, 2480, _ERFC.format("Besides a step it has the start of the sites and the gradient: six")
    ),
    ("SVGPRobustMax, minibatches", "AscentUpdates.step"): Budget(3000, 2680),
    ("SGPMCFreeForm, vb", "Iterations.run"): Budget(4000, 1680),
}
