"""Train GPRNTensor: `gpflow-ext train --model gprn-tensor`, under a name of its own."""

from gpflow_ext.cli.models import gprn_tensor
from gpflow_ext.cli.training import Script

script = Script(gprn_tensor, "gprn-tensor", __file__)
arguments, load, build, fit, main = script.arguments, script.load, script.build, script.fit, script.main

if __name__ == "__main__":
    main()
