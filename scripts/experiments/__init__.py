"""The papers' experiments, a package for each method: ``python -m scripts.experiments.<method>``."""
