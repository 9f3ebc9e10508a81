"""The version, in a file of its own, so that the package and the build can read it."""

__version__ = "0.2.0.dev0"
