"""Sample SGPMC-free-form: `gpflow-ext train --model sgpmc-free-form`, under a name of its own."""

from gpflow_ext.cli.models import sgpmc_freeform
from gpflow_ext.cli.training import Script

script = Script(sgpmc_freeform, "sgpmc-free-form", __file__)
arguments, load, build, fit, main = script.arguments, script.load, script.build, script.fit, script.main

if __name__ == "__main__":
    main()
