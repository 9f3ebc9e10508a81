"""Train SVGP-robustmax: `gpflow-ext train --model svgp-robustmax`, under a name of its own."""

from gpflow_ext.cli.curve import Curve
from gpflow_ext.cli.models import svgp_robustmax
from gpflow_ext.cli.training import Script

__all__ = ["Curve"]
script = Script(svgp_robustmax, "svgp-robustmax", __file__)
arguments, load, build, fit, main = script.arguments, script.load, script.build, script.fit, script.main

if __name__ == "__main__":
    main()
