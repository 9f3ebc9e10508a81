"""Train VGP-KMM: `gpflow-ext train --model vgp-kmm`, under a name of its own."""

from gpflow_ext.cli.models import vgp_kmm
from gpflow_ext.cli.training import Script

script = Script(vgp_kmm, "vgp-kmm", __file__)
arguments, load, build, fit, main = script.arguments, script.load, script.build, script.fit, script.main

if __name__ == "__main__":
    main()
