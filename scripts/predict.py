"""Predict every row of a CSV file with an exported model: `gpflow-ext predict`."""

from gpflow_ext.cli.predict import main, predict
from gpflow_ext.cli.run import run

__all__ = ["main", "predict"]

if __name__ == "__main__":
    run(lambda: main(prog=None))
