"""Which paper to cite for a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_REVIEW = """@misc{izmailov2016review,
  author    = {Izmailov, Pavel},
  title     = {Review of materials on {G}aussian Processes for Machine Learning},
  publisher = {Lomonosov Moscow State University},
  year      = {2016}
}"""

_HENSMAN = """@inproceedings{hensman2015mcmc,
  author    = {Hensman, James and Matthews, Alexander G. de G. and Filippone, Maurizio and
               Ghahramani, Zoubin},
  title     = {{MCMC} for Variationally Sparse {G}aussian Processes},
  booktitle = {Advances in Neural Information Processing Systems 28},
  year      = {2015}
}"""

_GPFLOW = """@article{matthews2017gpflow,
  author    = {Matthews, Alexander G. de G. and van der Wilk, Mark and Nickson, Tom and Fujii, Keisuke and
               Boukouvalas, Alexis and Le{\\'o}n-Villagr{\\'a}, Pablo and Ghahramani, Zoubin and
               Hensman, James},
  title     = {{GP}flow: A {G}aussian Process Library using {T}ensor{F}low},
  journal   = {Journal of Machine Learning Research},
  volume    = {18},
  number    = {40},
  pages     = {1--6},
  year      = {2017}
}"""

_PAPERS = {
    "GPRNTensor": """@inproceedings{li2020scalable,
  author    = {Li, Shibo and Xing, Wei and Kirby, Robert M. and Zhe, Shandian},
  title     = {Scalable {G}aussian Process Regression Networks},
  booktitle = {Proceedings of the 29th International Joint Conference on Artificial Intelligence},
  year      = {2020}
}""",
    "GPJaakkola": _REVIEW,
    "GPLaplace": _REVIEW,
    "GPTaylor": _REVIEW,
    "SGPMCFreeForm": _HENSMAN,
    "SVGPRobustMax": _HENSMAN,
    "SparseEP": """@inproceedings{hernandezlobato2016scalable,
  author    = {Hern{\\'a}ndez-Lobato, Daniel and Hern{\\'a}ndez-Lobato, Jos{\\'e} Miguel},
  title     = {Scalable {G}aussian Process Classification via Expectation Propagation},
  booktitle = {Proceedings of the 19th International Conference on Artificial Intelligence and Statistics},
  series    = {Proceedings of Machine Learning Research},
  volume    = {51},
  pages     = {168--176},
  year      = {2016}
}""",
    "VGPKMM": """@inproceedings{khan2012fast,
  author    = {Khan, Mohammad Emtiyaz and Mohamed, Shakir and Murphy, Kevin P.},
  title     = {Fast {B}ayesian Inference for Non-Conjugate {G}aussian Process Regression},
  booktitle = {Advances in Neural Information Processing Systems 25},
  year      = {2012}
}""",
}

_RECIPES = {  # names of recipes, and of the library below
    **dict.fromkeys(("laplace", "taylor", "jaakkola", "vi_means"), _REVIEW),
    **dict.fromkeys(("svi_natural", "svi_lbfgsb", "svi_sag", "svi_fg", "svi_classification"), _REVIEW),
    "dual": """@inproceedings{adam2021dual,
  author    = {Adam, Vincent and Chang, Paul E. and Khan, Mohammad Emtiyaz and Solin, Arno},
  title     = {Dual Parameterization of Sparse Variational {G}aussian Processes},
  booktitle = {Advances in Neural Information Processing Systems 34},
  year      = {2021}
}""",
    "kmm": _PAPERS["VGPKMM"],
    "ep": _PAPERS["SparseEP"],
    "robust_max": _HENSMAN,
    "gprn": _PAPERS["GPRNTensor"],
    "GPflow": _GPFLOW,
}


NAMES = (*_PAPERS, *_RECIPES)


def cite(model: Any) -> str:
    """Return the BibTeX entry of the paper behind a model, a model class, or the name of one or of a recipe.

    Of what holds a model, as estimators and the result of `auto` do, it is that of the model; of an average
    there is one for each paper behind its members. GPflow's own models have the paper of GPflow.

    Raises
    ------
    ValueError
        For an unknown name, or what is no model of this package or of GPflow.
    """
    if isinstance(model, str):
        known = {**_PAPERS, **_RECIPES}
        if model not in known:
            raise ValueError(f"No paper is recorded for {model!r}; there is one for {', '.join(known)}.")
        return known[model]
    if isinstance(model, type):
        return _paper(model)
    return "\n\n".join(dict.fromkeys(_papers(getattr(model, "model", getattr(model, "model_", model)))))


def _papers(model: Any) -> Iterator[str]:
    """Yield the entry of a model, or those of its members."""
    if not hasattr(model, "parts"):
        yield _paper(type(model))
        return
    for part in model.parts():
        yield from _papers(part)


def _paper(cls: type) -> str:
    """Return the entry of a class of models."""
    for base in cls.__mro__:
        if base.__name__ in _PAPERS:
            return _PAPERS[base.__name__]
        if base.__module__.partition(".")[0] == "gpflow":
            return _GPFLOW
    raise ValueError(
        f"No paper is recorded for {cls.__name__}; the models with one are: {', '.join(_PAPERS)}."
    )
