"""``python -m gpflow_ext`` is the command ``gpflow-ext``."""

from gpflow_ext.cli import main

if __name__ == "__main__":
    main()
