"""Models with a structured prior instead of a matrix of N rows: a state space, or neighbours."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np

from gpflow_ext.data import checks
from gpflow_ext.data.held import HoldsData
from gpflow_ext.sites import markov_prior
from gpflow_ext.sites.vecchia import check as vecchia_check
from gpflow_ext.sites.vecchia.structure import Structure, VecchiaOptions


def misfit(prior: str | VecchiaOptions, kernel: gpflow.kernels.Kernel, X: Any) -> str | None:
    """Say why a structured prior, ``"markov"`` or ``"vecchia"``, does not fit a kernel and inputs X [N, D].

    Return ``None`` if it fits. The memory of ``"vecchia"`` is only checked when the model is built.
    """
    if prior == "markov":
        try:
            markov_prior.check(kernel, np.asarray(X).shape[1], "model")
        except (ValueError, NotImplementedError) as refusal:
            return str(refusal)
        return None
    return vecchia_check.misfit(kernel, X)


class HasStructure(HoldsData):
    """The part of a site model that knows of structured priors.

    Attributes
    ----------
    is_markov
        Whether the prior is that of a state space, at O(N).
    structure
        The neighbours of a Vecchia prior, else ``None``.
    """

    kernel: gpflow.kernels.Kernel
    is_markov: bool = False
    vecchia: VecchiaOptions | None = None
    structure: Structure | None = None

    def _check_prior(self, prior: Any, points: Any, kernel: gpflow.kernels.Kernel, X: checks.Array) -> None:
        """Raise for an unknown prior, or one that is not for the kernel and the inputs."""
        if prior is None:
            return
        if prior not in ("markov", "vecchia") and not isinstance(prior, VecchiaOptions):
            raise ValueError(
                f'`prior` must be None, "markov", "vecchia" or VecchiaOptions(...); got {prior!r}.'
            )
        if points is not None:
            raise ValueError(
                f"prior={prior!r} has no inducing points: give `prior` or `inducing_variable`, not both."
            )
        owner = type(self).__name__
        if prior == "markov":
            markov_prior.check(kernel, X.shape[1], owner)
        elif self.follows:
            raise ValueError(
                'prior="vecchia" chooses neighbours among the data: give it arrays, not variables, and '
                "`update_data` for others."
            )
        else:
            vecchia_check.check(kernel, X, owner)

    def choose_neighbours(self) -> None:
        """Choose the neighbours of a Vecchia prior, nearest in units of the current length scales.

        They stay fixed while hyperparameters are learnt. Choose again if the length scales of several
        columns have changed by different factors.

        Raises
        ------
        ValueError
            For a model with another prior.
        """
        if self.vecchia is None:
            raise ValueError('Only prior="vecchia" has neighbours to choose.')
        X = np.asarray(self.data[0])
        self.structure = Structure(X, vecchia_check.scales(self.kernel, X.shape[1]), self.vecchia)

    @property
    def prior_name(self) -> str | None:
        """The name of a structured prior, else ``None``."""
        return "markov" if self.is_markov else None if self.vecchia is None else "vecchia"

    @property
    def is_structured(self) -> bool:
        """Whether the prior forms no matrix of N rows, and so cannot be whitened."""
        return self.prior_name is not None

    def _replace(self, X: checks.Array, Y: checks.Array) -> None:
        if self.vecchia is not None:
            vecchia_check.check(self.kernel, X, type(self).__name__)
        super()._replace(X, Y)
        if self.vecchia is not None:
            self.choose_neighbours()

    def _take_prior(self, prior: Any) -> None:
        """Take a prior that `_check_prior` has let pass."""
        self.is_markov = prior == "markov"
        if prior == "vecchia" or isinstance(prior, VecchiaOptions):
            self.vecchia = VecchiaOptions() if isinstance(prior, str) else prior
            self.choose_neighbours()
