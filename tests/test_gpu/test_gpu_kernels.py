"""What the kernels are made of, and that they compile to CUDA code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pp3shm.gpu import Fault, Mode, Refusal
from pp3shm.gpu.scatter import NONE
from pp3shm.gpu.views import signed
from pp3shm.verify.reference import MASS_TOLERANCE

pytest.importorskip("triton")

TESTS = Path(__file__).parents[1]
DRAWS = json.loads((TESTS / "vectors" / "draws.json").read_text())["cases"]


def test_words_and_uniforms_of_every_purpose_are_the_vectors(triton_device):
    from kernel_probes import streams  # noqa: PLC0415 - needs Triton

    purposes = ("proposal", "accept", "residual")
    asked = [(case, case[name]) for case in DRAWS for name in purposes]
    asked = (asked * 64)[:64]
    keys = [signed(each["key"][0] | each["key"][1] << 32) for _, each in asked]

    def column(values):
        return torch.tensor(values, dtype=torch.int64, device=triton_device)

    words = torch.full((64, 4), -1, device=triton_device)
    uniforms = torch.full((64, 2), torch.nan, dtype=torch.float64, device=triton_device)
    streams[1,](
        column(keys),
        column([signed(case["round"]) for case, _ in asked]),
        column([signed(case["position"]) for case, _ in asked]),
        words,
        uniforms,
        N=64,
    )
    assert words.tolist() == [each["words"] for _, each in asked]
    expected = [
        [(w[0] >> 3) * 2.0**-29, ((w[0] << 32 | w[1]) >> 11) * 2.0**-53]
        for w in (each["words"] for _, each in asked)
    ]
    assert expected == uniforms.tolist()


def test_weights_are_within_two_units_of_fp32(triton_device):
    """Against long doubles, at any temperature; and their sum is far closer."""
    from kernel_probes import weigh  # noqa: PLC0415 - needs Triton

    random = np.random.default_rng(2)
    heats = [1e-30, 1e-6, 1e-3, 0.05, 0.3, 0.7, 1.0, 1.5, 50.0, 1e30]
    n, size = len(heats), 1024
    z = (random.normal(0, 1, (n, size)) * np.logspace(-3, 2, size)).astype("f4")
    z[:, 5], z[:, 7] = -np.inf, -1e38
    weights = torch.full((n, size), torch.nan, device=triton_device)
    exponent = torch.full((n,), torch.nan, dtype=torch.float64, device=triton_device)
    weigh[n,](
        torch.from_numpy(z).to(triton_device),
        torch.tensor(heats, dtype=torch.float64, device=triton_device),
        weights,
        exponent,
        N=size,
    )
    found = weights.double().cpu().numpy()
    for row, heat, w in zip(z, heats, found, strict=True):
        apart = (row.astype(np.longdouble) - row.max()) / np.longdouble(heat)
        exact = np.exp(apart).astype(float)
        w = w / w[row.argmax()]  # noqa: PLW2901
        seen = exact > 1e-37
        assert np.abs(w[seen] / exact[seen] - 1).max() < 2.5e-7
        assert w[~seen].max(initial=0.0) < 2e-37
        assert w[5] == 0.0
        away = np.abs(w / w.sum() - exact / exact.sum()).sum() / 2
        assert away < 6e-8
    assert ((found.max(1) > 0.7) & (found.max(1) < 1.5)).all()
    assert (exponent == exponent.round()).all().item()


def test_the_kernels_codes_are_the_enumerations():
    from pp3shm.gpu import propose_kernels as p  # noqa: PLC0415
    from pp3shm.gpu import sparse_common as s  # noqa: PLC0415

    for code, meaning in {
        s.TARGET_ONLY: Mode.TARGET_ONLY,
        s.GREEDY: Mode.GREEDY,
        s.SAMPLED: Mode.SAMPLED,
        s.GOOD: Fault.NONE,
        s.BAD_MASK: Fault.MASK,
        s.BAD_TOKEN: Fault.TOKEN,
        s.BAD_SUPPORT: Fault.SUPPORT,
        s.BAD_MASS: Fault.MASS,
        s.STALE: Fault.STALE,
        s.OTHER_MODE: Fault.MODE,
        s.BAD_TARGET: Fault.TARGET,
        s.NO_ROUND: NONE,
        s.TOLERANCE: MASS_TOLERANCE,
        p.NOT_A_NUMBER: Refusal.NOT_A_NUMBER,
        p.NOTHING_FINITE: Refusal.NOTHING_FINITE,
        p.NO_REST: Refusal.NO_REST,
        p.NO_TOKEN: Refusal.NO_TOKEN,
    }.items():
        assert code.value == meaning


def test_every_kernel_compiles_to_cuda_code_that_rounds_as_the_interpreter(tmp_path):
    """No device is needed.

    No fused product and sum but those that are asked for, so that the bias is added as
    the reference adds it; no approximate exponential.
    """
    done = subprocess.run(
        [sys.executable, TESTS / "compile_kernels.py", "90"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
    )
    if "ptxas" in done.stderr and "Cannot find" in done.stderr:
        pytest.skip("needs the assembler of Triton's wheel, which this one has not")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert len(facts) == 6
    for name, fact in facts.items():
        assert fact["approximate"] == 0, name
        assert (fact["fused"] > 0) == (name in {"sum_runs", "decide"}), name
