"""Train by a method of Izmailov's review: `gpflow-ext train --model gp-laplace` and others, by ``--method``."""

from gpflow_ext.cli.models import review
from gpflow_ext.cli.models.review import METHODS, QUADRATIC, STOCHASTIC
from gpflow_ext.cli.training import Script

__all__ = ["METHODS", "QUADRATIC", "STOCHASTIC"]
script = Script(review, "review", __file__)
arguments, load, build, fit, main = script.arguments, script.load, script.build, script.fit, script.main

if __name__ == "__main__":
    main()
