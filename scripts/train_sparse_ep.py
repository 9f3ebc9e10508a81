"""Train SparseEP: `gpflow-ext train --model sparse-ep`, under a name of its own."""

from gpflow_ext.cli.models import sparse_ep
from gpflow_ext.cli.training import Script

script = Script(sparse_ep, "sparse-ep", __file__)
arguments, load, build, fit, main = script.arguments, script.load, script.build, script.fit, script.main

if __name__ == "__main__":
    main()
