"""Classes of devices: what they are told by, and that `info` says where the rules were measured elsewhere."""

from __future__ import annotations

import types

import pytest

import jax_convgrad
from jax_convgrad._src.dispatch import devices


@pytest.mark.parametrize(
    "capability, expected",
    [
        ((7, 5), None),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((12, 0), "sm_120"),
        ((13, 0), "sm_120"),
    ],
)
def test_classes_of_compute_capabilities(capability: tuple[int, int], expected: str | None):
    assert devices.cuda_class((capability,)) == expected
    assert devices.cuda_class((capability, (8, 0))) == expected  # the first device counts


def test_no_device_has_no_class():
    assert devices.cuda_class(()) is None
    assert devices.device_class("tpu") is None and devices.device_class(None) is None


@pytest.mark.parametrize(
    "flags, tiles, expected",
    [
        (["sse2"], True, None),
        (["avx2"], True, "avx2"),
        (["avx2", "avx512f"], True, "avx512"),
        (["avx2", "avx512f", "amx_bf16"], True, "amx"),
        (["avx2", "avx512f", "amx_bf16"], False, "avx512"),
    ],
)
def test_classes_of_processors(
    flags: list[str], tiles: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    """AMX whose tiles a hypervisor hides is none."""
    module = types.SimpleNamespace(describes_amx_tiles=lambda: tiles)
    monkeypatch.setattr(devices.registry, "cpu_module", lambda: module)
    monkeypatch.setattr(devices, "_cpu_flags", lambda: flags)
    assert devices._cpu_class.__wrapped__() == expected


def test_info_says_where_rules_come_from_other_devices(monkeypatch: pytest.MonkeyPatch):
    entry = jax_convgrad.info()["handlers"]["cpu"]
    assert entry["device_class"] == devices.device_class("cpu")
    # The tables of convolutions and resizes, rules with a class of their own, and whole backward passes.
    assert set(entry["rules_measured_on"].split(", ")) == {"amx", "avx512"}
    monkeypatch.setattr(devices.registry, "cuda_capabilities", lambda: ((8, 0),))
    entry = jax_convgrad.info()["handlers"]["cuda"]
    assert (entry["device_class"], entry["rules_measured_on"]) == ("sm_80", "sm_90")
