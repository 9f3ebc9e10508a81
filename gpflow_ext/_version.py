"""The version, alone in a file so that every floor and the build can read it."""

__version__ = "0.2.0.dev0"
