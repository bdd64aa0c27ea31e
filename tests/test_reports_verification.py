"""Faults that users reported of other verifiers: each has a test of its whole kind.

``ROWS`` says which test is whose; what no other file tests is tested here.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from qualify import controls

from pp3shm.rng import residual_uniform
from pp3shm.verify import Request, VerifyKeys, verify
from pp3shm.verify.reference import inverse_cdf, softmax_row

HERE = Path(__file__).parent
CONTROLLED = "test_qualify.py::test_every_wrong_verifier_is_noticed"
FAMILIES = "test_qualify.py::test_every_family_is_emitted_with_the_targets_law"

ROWS = {
    # the noise that drew the draft is used again: vllm-project/vllm #47386, #54282
    1: (
        "test_law.py::test_noise_that_drew_the_draft_is_not_used_again",
        "test_gpu/test_gpu_law.py::test_a_wrong_q_or_a_shared_stream_is_seen_to_bias",
        CONTROLLED,
    ),
    # one word decides twice: local-inference-lab/vllm #205
    2: (
        "test_rng.py::test_no_block_serves_two_decisions_in_a_thousand_rounds",
        (
            "test_gpu/test_gpu_kernels.py::"
            "test_words_and_uniforms_of_every_purpose_are_the_vectors"
        ),
    ),
    # verified without the q that was sampled: vllm-project/vllm #40149, #40269
    3: (FAMILIES, "test_law.py::test_a_point_mass_in_the_ratio_alone_is_noticed"),
    # one missing row switches the whole batch: vllm-project/vllm #44869
    4: (
        (
            "test_verify_batch.py::"
            "test_a_failed_request_emits_the_unchanged_target_and_touches_nobody"
        ),
        (
            "test_gpu/test_gpu_verify.py::"
            "test_one_request_without_q_is_target_only_and_the_others_do_not_notice"
        ),
    ),
    # q returned is not the q sampled: huggingface/transformers #47932, #47961
    5: ("test_proposal.py::test_draws_follow_the_counts_that_are_shipped",),
    # sampled in one precision, verified in another: deepseek-ai/DeepSpec #31
    6: (
        "test_proposal.py::test_core_and_reference_agree_to_the_bit",
        "test_proposal.py::test_every_draw_falls_where_the_counts_say",
        (
            "test_gpu/test_gpu_scatter.py::"
            "test_q_comes_back_to_the_bit_and_nothing_else_is_there"
        ),
    ),
    # the draft ignores the temperature: z-lab/dflash #74
    7: (
        "test_law.py::test_real_rounds_emit_the_targets_distribution",
        "test_gpu/test_gpu_law.py::test_the_law_holds_at_every_temperature_of_the_target",
    ),
    # ratio with q, residual without the rest of it: xLLM-AI/xllm #2175
    8: ("test_law.py::test_a_fault_others_had_is_noticed", CONTROLLED),
    # q all zero placeholders: sgl-project/sglang #9877, #26312
    10: (
        "test_validate_q.py::test_a_token_without_mass_or_off_the_support_is_mass",
        "test_verify_batch.py::test_a_reply_that_is_none_is_never_verified_with",
    ),
    # a NaN in q emits the rejected token: vllm-project/vllm #41834
    13: (
        "test_verify_batch.py::test_a_reply_that_is_none_is_never_verified_with",
        (
            "test_gpu/test_gpu_sparse_refusals.py::"
            "test_a_row_that_fails_a_check_emits_nothing_and_the_others_do"
        ),
    ),
    # greedy rows divided by 0: vllm-project/vllm #27077; google-deepmind/gemma #563
    14: (
        "test_verify_batch.py::test_requests_are_verified_as_if_alone",
        (
            "test_gpu/test_gpu_verify.py::"
            "test_greedy_beside_sampled_is_the_argmax_and_leaves_the_sampled_alone"
        ),
    ),
    # what memory held before is read: vllm-project/vllm #55005, #42638
    15: (
        "test_reports_verification.py::test_what_memory_held_before_reaches_no_result",
        "test_gpu/test_gpu_sparse.py::test_what_memory_held_before_reaches_no_result",
    ),
    # the uniform hard-coded to 0: vllm-project/vllm-ascend #13766, #13730
    16: (FAMILIES, CONTROLLED),
    # "block" with the plain rule's residual: vllm-project/vllm-ascend #7807, #7808
    17: (
        (
            "test_verify_sparse.py::"
            "test_block_verification_has_the_targets_law_and_accepts_no_less"
        ),
        (
            "test_verify_sparse.py::"
            "test_a_correction_that_forgets_what_the_block_kept_is_noticed"
        ),
    ),
    # a request of placeholders alone: vllm-project/vllm-ascend #14368
    18: (
        (
            "test_verify_batch.py::"
            "test_a_failed_request_emits_the_unchanged_target_and_touches_nobody"
        ),
    ),
    # the cache of q loses its precision: vllm-project/vllm #37526, #50910
    20: (
        (
            "test_gpu/test_gpu_scatter.py::"
            "test_q_comes_back_to_the_bit_and_nothing_else_is_there"
        ),
        (
            "test_gpu/test_gpu_carrier.py::"
            "test_a_sampler_gets_q_back_from_fp32_and_not_from_bf16"
        ),
    ),
    # preemption before verification: vllm-project/vllm #49620, #20459, #16899
    22: (
        "test_verify_batch.py::test_a_row_of_another_round_is_never_used",
        "test_engine.py::test_a_reset_makes_the_rows_of_older_generations_stale",
        "test_engine.py::test_a_closed_slot_is_stale_in_what_was_in_flight",
    ),
    # processors reach the bonus token alone: vllm-project/vllm #42744, #42802, #9834
    24: (
        (
            "test_reports_verification.py::"
            "test_every_row_is_that_of_the_target_only_sampler"
        ),
        "test_verify_sparse.py::test_a_logit_mask_is_added_before_anything_else",
    ),
    # ranks accept different counts: vllm-project/vllm #10863, #17509
    "ranks": (
        "test_gpu/test_gpu_scatter.py::test_two_ranks_hold_the_same_bits_of_one_page",
    ),
    # a request alone and in a batch: vllm-project/vllm #52522
    "batch": (
        "test_verify_sparse.py::test_slot_order_batch_and_threads_change_nothing",
        (
            "test_gpu/test_gpu_sparse.py::"
            "test_composition_and_order_of_a_batch_change_no_bit"
        ),
    ),
    # a coin of exactly 1 walks off the CDF: sgl-project/sglang
    "coin": (
        "test_verify.py::test_the_inverse_cdf_takes_the_first_that_exceeds",
        (
            "test_verify_sparse.py::"
            "test_weights_are_those_of_the_softmax_whatever_the_range"
        ),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_report_has_its_tests(row):
    """By name, so that none is renamed away."""
    for place in ROWS[row]:
        file, _, name = place.partition("::")
        assert f"\ndef {name}(" in (HERE / file).read_text(), place


def _round(vocab, seed, n=4):
    """Two drafts a request from one q, and random target logits."""
    g = np.random.default_rng(seed)
    pair = controls.pair_of("a stale row of q")
    at = g.choice(32, (n, 2), p=pair.counts / pair.counts.sum())
    page = SimpleNamespace(
        round=3, status=np.zeros(n, np.int32), tokens=at.astype(np.int32),
        mask=np.ones(n, np.int32), ids=np.tile(pair.ids, (n, 2, 1)),
        q=np.tile((pair.counts / 2**24).astype(np.float32), (n, 2, 1)),
    )  # fmt: skip
    asked = [Request(i, 9, VerifyKeys.derive(b"e" * 16, i, 1, 0)) for i in range(n)]
    return page, g.normal(0, 2, (n, 3, vocab)).astype(np.float32), asked


def _min_p(z):
    peak = z.max(axis=-1, keepdims=True)
    return np.where(z < peak + np.log(0.05), -np.inf, z).astype(np.float32)


def _biased(z):
    return (z + np.linspace(-1, 1, z.shape[-1])).astype(np.float32)


def _top(z):
    least = np.sort(z, axis=-1)[..., -5:-4]
    return np.where(z < least, -np.inf, z).astype(np.float32)


@pytest.mark.parametrize("processor", [_min_p, _biased, _top])
@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_every_row_is_that_of_the_target_only_sampler(processor, engine):
    """What is emitted at any position follows the processed row, bonus or not.

    Where a draft is outside what the processor leaves, it is never accepted, and a
    request whose drafts all fail draws what the target-only sampler draws.
    """
    for seed in range(30):
        page, logits, asked = _round(32, seed)
        z = processor(logits)
        out = verify(page, z, asked, round=3, vocab=32, logits=True, engine=engine)
        for i, count in enumerate(out.count):
            for at, token in enumerate(out.tokens[i, :count]):
                assert z[i, at, token] > -np.inf
        page.status[:] = 2
        alone = verify(page, z, asked, round=3, vocab=32, logits=True, engine=engine)
        for i, request in enumerate(asked):
            bits = _residual(request)
            drawn = inverse_cdf(softmax_row(z[i, 0], 32, 1.0, 0), bits)
            assert alone.tokens[i, 0] == drawn


def _residual(request):
    return residual_uniform(request.keys.residual, 3, request.position)


def test_what_memory_held_before_reaches_no_result(monkeypatch):
    """Every array that the C engine is given is full of rubbish first."""
    page, logits, asked = _round(600, 1)
    known = verify(page, logits, asked, round=3, vocab=600, logits=True, engine="c")
    empty = np.empty
    for byte in (0x00, 0xA5, 0xFF):

        def rubbish(*args, byte=byte, **options):
            array = empty(*args, **options)
            array.view(np.uint8).reshape(-1)[:] = byte
            return array

        monkeypatch.setattr(np, "empty", rubbish)
        out = verify(page, logits, asked, round=3, vocab=600, logits=True, engine="c")
        monkeypatch.undo()
        assert out.tokens.tolist() == known.tokens.tolist()
        assert out.no_mass.tolist() == known.no_mass.tolist()
        assert out.last == known.last
