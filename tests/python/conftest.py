import numpy as np
import pytest

import golden
import openpi_c


@pytest.fixture(scope="session")
def droid():
    """(policy, observation, noise, actions) of an openpi golden with two cameras and a state of two parts."""
    arguments, data, tensors = golden.policy_case("droid_pi0")
    with openpi_c.Policy(sessions=2, batch=3, **arguments) as policy:
        obs = golden.message(data)
        yield policy, obs, tensors["noise"], policy.infer(obs, noise=tensors["noise"])["actions"]


@pytest.fixture(scope="session")
def aloha():
    """The same of ALOHA: a dict of pictures, channels first."""
    arguments, data, tensors = golden.policy_case("aloha_pi05")
    with openpi_c.Policy(**arguments) as policy:
        obs = golden.message(data)
        yield policy, obs, tensors["noise"], policy.infer(obs, noise=tensors["noise"])["actions"]


@pytest.fixture
def none():
    """A fresh policy of the model's own space, and an observation of it."""
    with openpi_c.Policy(synthetic="odd:pi0:7", robot="none", steps=2, horizon=4) as policy:
        yield policy, {"base": np.full((20, 30, 3), 7, np.uint8), "state": [0.1, -0.2], "prompt": "go"}
