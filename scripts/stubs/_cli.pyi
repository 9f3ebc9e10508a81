"""The module that a command finds beside itself."""

from scripts._cli import *  # noqa: F403
