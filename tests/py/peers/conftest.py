# SPDX-License-Identifier: Apache-2.0
"""The tests of peers: what PyTorch and others ask of attention, asked of theirs and of ours."""

import pytest


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """The host as it came, whatever the test before has done, and no compiled code of another run."""
    import torch._dynamo

    import rapt.torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)            # the calls are small, and a waiting thread of the host's pool spins
    torch.manual_seed(23)
    torch._dynamo.reset()
    yield
    rapt.torch.remove()
    torch.set_num_threads(threads)


@pytest.fixture
def installed():
    import rapt.torch

    with rapt.torch.install():
        yield
