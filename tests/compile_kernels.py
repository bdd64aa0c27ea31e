"""Compiles every kernel for a CUDA target, which needs no device; prints facts of each.

Run as a program, with Triton's interpreter off: ``compile_kernels.py CAPABILITY``.
"""

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pp3shm.gpu import propose_kernels, sparse_decide, sparse_pass

# What the launchers pass, by the arguments' names.
WIDE = {"slots", "round", "page_round", "positions", "keys", "draws"}
DOUBLE = {"temperature", "largest", "sums", "accept", "residual", "tau"}
SINGLE = {"target", "added", "logits", "left", "right", "q", "own_q", "values"}
SINGLE |= {"wrong", "found_values", "fault_value", "confidence"}
BYTES = {"stale", "no_mass"}
VERIFIER_WIDE = {"mode", "error", "found", "drafts", "count", "accepted"}
STRIDES = {"target_b", "target_i", "added_b", "added_i", "logits_b"}

SPARSE = {"target_v": 1, "added_v": 1, "LOGITS": True, "ADDED": True, "REQS": 1}
SMALL = {"HAS_Q": True, "SUPPORT": 8}
KERNELS = [
    (sparse_pass.take_page, SMALL | {"REQS": 1, "DEPTH": 2}, {}),
    (sparse_pass.sum_runs, SPARSE | {"ROWS": 1, "RUNS": 2, "RUN": 256}, {}),
    (
        sparse_decide.decide,
        SPARSE | SMALL | {"GIVEN": False, "ROWS": 2, "CHUNK": 4, "RUNS": 4, "RUN": 128},
        {"tokens": "*i64"},
    ),
    (
        propose_kernels.find_candidates,
        {"logits_v": 1, "BIAS": 2, "REQS": 1, "BLOCK": 256, "SUPPORT": 8},
        {},
    ),
    (
        propose_kernels.merge_candidates,
        {"REQS": 1, "BLOCKS": 4, "SUPPORT": 8},
        {},
    ),
    (
        propose_kernels.settle,
        {"K": 8, "LARGEST_REMAINDER": True, "GIVEN": False, "REQS": 1}
        | {"BLOCKS": 4, "SUPPORT": 8},
        {},
    ),
]


def kind(name, special):
    """The Triton type of an argument."""
    if not name.endswith("_p"):
        return "i64" if name in STRIDES else "i32"
    name = name[:-2]
    for names, shown in (
        (special, special.get(name)),
        (WIDE, "*i64"),
        (DOUBLE, "*fp64"),
        (SINGLE, "*fp32"),
        (BYTES, "*u8"),
        (VERIFIER_WIDE, "*i64"),
    ):
        if name in names:
            return shown
    return "*i32"


def compiled(kernel, constants, special, target):
    """PTX of a kernel; assembled too, or this raises."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else kind(name, special)
        for name in names
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    options = {"enable_fp_fusion": False, "num_warps": 4}
    done = triton.compile(source, target=target, options=options)
    assert done.asm["cubin"]
    return done.asm["ptx"]


def main():
    """Facts by kernel, as JSON."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    facts = {}
    for kernel, constants, special in KERNELS:
        ptx = compiled(kernel, constants, special, target)
        facts[kernel.__name__] = {
            "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
            "approximate": len(re.findall(r"\b(?:ex2|lg2|rcp\.approx)", ptx)),
        }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
