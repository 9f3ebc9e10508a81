"""Export the newest checkpoint of a training run as a SavedModel: `gpflow-ext export`."""

from gpflow_ext.cli.export import main
from gpflow_ext.cli.run import run

if __name__ == "__main__":
    run(lambda: main(prog=None))
