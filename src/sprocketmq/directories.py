"""The home directory of the user, which not every process has."""

from pathlib import Path


def home_directory() -> Path | None:
    """Return the user's home directory, or None: without ``HOME``, a user that the system has no entry of has none, as in containers."""
    try:
        return Path.home()
    except RuntimeError:
        return None
