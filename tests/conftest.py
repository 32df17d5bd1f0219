"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("paploss", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("paploss")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["compiled", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the numba kernel and with the plain PyTorch one."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setenv("PAPLOSS_COMPILED", "1" if request.param == "compiled" else "0")
    return request.param
