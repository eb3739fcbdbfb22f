"""Types are checked in every test: shapes by jaxtyping, the rest by beartype."""

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

install_import_hook("lib", "beartype.beartype")
torch.set_num_threads(1)

# No deadline: the first call imports torch. Same examples on every machine.
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")


@pytest.fixture
def unchecked_shapes():
    """Without the checks of types, as readers run it: the library must speak for itself."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
