"""Speed beside other implementations: ``python -m scripts.benchmarks all``."""
