"""Models with a structured prior instead of a matrix of N rows: a state space, neighbours, or a grid."""

from __future__ import annotations

from typing import Any, TypeAlias

import gpflow
import numpy as np

from gpflow_ext.data import checks
from gpflow_ext.data.held import HoldsData
from gpflow_ext.sites import markov_prior
from gpflow_ext.sites.grid import structure as grid
from gpflow_ext.sites.grid.structure import GridOptions, GridStructure
from gpflow_ext.sites.method import SiteMethod, site_method
from gpflow_ext.sites.vecchia import check as vecchia
from gpflow_ext.sites.vecchia.iterative_structure import IterativeStructure
from gpflow_ext.sites.vecchia.structure import Structure, VecchiaOptions

PriorLike: TypeAlias = str | VecchiaOptions | GridOptions
OPTIONS: dict[str, Any] = {"markov": None, "vecchia": VecchiaOptions, "grid": GridOptions}


def misfit(prior: PriorLike, kernel: gpflow.kernels.Kernel, X: Any) -> str | None:
    """Say why a structured prior, ``"markov"``, ``"vecchia"`` or ``"grid"``, does not fit.

    Given are a kernel and inputs X [N, D]. Return ``None`` if it fits. Memory is only checked when the model
    is built.
    """
    name, _ = _named(prior)
    if name == "markov":
        try:
            markov_prior.check(kernel, np.asarray(X).shape[1], "model")
        except (ValueError, NotImplementedError) as refusal:
            return str(refusal)
        return None
    return (grid if name == "grid" else vecchia).misfit(kernel, X)


def _named(prior: Any) -> tuple[str, Any]:
    """Return the name and the options of a structured prior.

    Raises
    ------
    ValueError
        For anything else; the message lists what there is.
    """
    for name, kind in OPTIONS.items():
        if prior == name:
            return name, None if kind is None else kind()
        if kind is not None and isinstance(prior, kind):
            return name, prior
    raise ValueError(
        '`prior` must be None, "markov", "vecchia", "grid", VecchiaOptions(...) or GridOptions(...); got '
        f"{prior!r}."
    )


class HasStructure(HoldsData):
    """The part of a site model that knows of structured priors.

    Attributes
    ----------
    prior_name
        ``"markov"``, a state space at O(N), ``"vecchia"`` or ``"grid"``, else ``None``.
    prior_options
        The options of a Vecchia or a grid prior.
    structure
        The neighbours of a Vecchia prior, or the cells of a grid prior, else ``None``.
    """

    kernel: gpflow.kernels.Kernel
    num_latent_gps: int
    site_method: SiteMethod | str
    prior_name: str | None = None
    prior_options: VecchiaOptions | GridOptions | None = None
    structure: Structure | IterativeStructure | GridStructure | None = None

    def _check_prior(self, prior: Any, points: Any, kernel: gpflow.kernels.Kernel, X: checks.Array) -> None:
        """Raise for an unknown prior, or one that is not for the kernel and the inputs."""
        if prior is None:
            return
        name, _ = _named(prior)
        if points is not None:
            raise ValueError(
                f"prior={prior!r} has no inducing points: give `prior` or `inducing_variable`, not both."
            )
        owner = type(self).__name__
        if name == "markov":
            markov_prior.check(kernel, X.shape[1], owner)
        elif self.follows:
            chooses = "neighbours among" if name == "vecchia" else "the cells of"
            raise ValueError(
                f'prior="{name}" chooses {chooses} the data: give it arrays, not variables, and '
                "`update_data` for others."
            )
        else:
            (grid if name == "grid" else vecchia).check(kernel, X, owner)

    def choose_neighbours(self) -> None:
        """Choose the neighbours of a Vecchia prior, nearest in units of the current length scales.

        They stay fixed while hyperparameters are learnt. Choose again if the length scales of several
        columns have changed by different factors.

        Raises
        ------
        ValueError
            For a model with another prior.
        """
        if self.prior_name != "vecchia":
            raise ValueError('Only prior="vecchia" has neighbours to choose.')
        self._build_structure()

    def _build_structure(self) -> None:
        X, options = np.asarray(self.data[0]), self.prior_options
        if isinstance(options, VecchiaOptions):
            scales, functions = vecchia.scales(self.kernel, X.shape[1]), self.num_latent_gps
            method = site_method(self.site_method)
            if options.iterates(len(X), method.sums_variances):
                self.structure = IterativeStructure(X, scales, options, functions)
            else:
                self.structure = Structure(X, scales, options, self.kernel, functions, method.hands_on)
        elif isinstance(options, GridOptions):
            self.structure = GridStructure(X, options, self.num_latent_gps)

    @property
    def is_structured(self) -> bool:
        """Whether the prior forms no matrix of N rows, and so cannot be whitened."""
        return self.prior_name is not None

    @property
    def solver_error(self) -> float:
        """The relative tolerance of what the prior solves by iteration, 0 where it solves directly."""
        if isinstance(self.structure, (IterativeStructure, GridStructure)):
            return self.structure.options.tolerance
        return 0.0

    @property
    def estimates_variances(self) -> bool:
        """Whether the prior has variances at the data that are right on average, but not for one datum."""
        return isinstance(self.structure, IterativeStructure)

    def _replace(self, X: checks.Array, Y: checks.Array) -> None:
        if self.prior_options is not None:
            self._check_prior(self.prior_options, None, self.kernel, X)
        super()._replace(X, Y)
        self._build_structure()

    def _take_prior(self, prior: Any) -> None:
        """Take a prior that `_check_prior` has let pass."""
        if prior is not None:
            self.prior_name, self.prior_options = _named(prior)
            self._build_structure()
