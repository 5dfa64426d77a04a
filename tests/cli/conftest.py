"""What tests of commands share."""

from tests.launch.conftest import start

__all__ = ["start"]
