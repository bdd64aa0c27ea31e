"""Every function that takes bytes or words of a peer, and how it is proved."""

from torture.bounds.prover import Harness
from torture.changed import Change

_FILL = ("--unwindsetname", "pp3_page_fill:1:5")  # its loop over the support
_WRAPS = ("--unsigned-overflow-check",)


def _ring(define: str, *proves: str, unwind: int = 5) -> Harness:
    return Harness("ring.c", proves, (define,), unwind)


# In the order of their cost: the shorter forms take the first ones.
HARNESSES = (
    _ring("READ", "pp3_read"),
    _ring("LOOK", "pp3_look"),
    _ring("PLACES", "pp3_page", "pp3_request"),
    _ring("GIVE", "pp3_give_back"),
    _ring("NOTE", "pp3_note_read"),
    _ring("SLOT", "pp3_slot_read"),
    Harness("exchange.c", ("pp3_answer",), ("ANSWER",), 10),
    Harness("exchange.c", ("pp3_answer_failed",), ("FAILED",), 10),
    Harness("accept.c", ("pp3_reply_round",), ("ROUND",)),
    Harness("accept.c", ("pp3_accept",), ("UNAWAITED",), 3, _FILL),
    _ring("PUBLISH", "pp3_publish"),
    _ring("SWEEP", "pp3_sweep"),
    _ring("RELEASE", "pp3_release"),
    _ring("NEXT", "pp3_next", "pp3_work_pending", unwind=10),
    _ring("TAKE", "pp3_take", unwind=10),
    Harness("exchange.c", ("pp3_take_step",), ("TAKE_STEP",), 10),
    _ring("EXPIRE", "pp3_expire", "pp3_fail", "pp3_resolve"),
    Harness(
        "crc.c",
        ("pp3_crc32", "pp3_crc_begin", "pp3_crc_block", "pp3_crc_end"),
        (),
        18,
        ("--unwindsetname", "fill_slices:2:300"),
    ),
    Harness("step.c", ("pp3_step_check", "pp3_layout_ok"), ("CHECK",), 5, _WRAPS),
    *(
        Harness(
            "step.c",
            ("pp3_fail_page", "pp3_page_fill", "pp3_page_at", "pp3_step_at"),
            ("FAIL", f"DEPTH={depth}", f"SLOTS={slots}", f"SAMPLED={sampled}"),
            3,
            _FILL,
        )
        for sampled in (0, 1)
        for slots in (1, 2)
        for depth in (1, 2)
    ),
    Harness("shape.c", ("pp3_shape_fill", "pp3_shape_places"), (), 5, _WRAPS),
    Harness("accept.c", ("pp3_accept",), ("ODD",), 3, _FILL),
    *(
        Harness(
            "accept.c",
            ("pp3_accept", "pp3_reply_at"),
            (f"ROWS={rows}", f"DEPTH={depth}", f"SLOTS={slots}", f"SAMPLED={sampled}"),
            3,
            _FILL,
        )
        for sampled in (0, 1)
        for slots in (1, 2)
        for depth in (1, 2)
        for rows in range(1, slots + 1)
    ),
)

# Functions of the headers that take such bytes or words and have no proof here.
ELSEWHERE = {
    "pp3_ids_ok": "vectors, which the prover does not take; fuzzed in figure 10",
    "pp3_ids_unused": "as pp3_ids_ok",
    "pp3_wrong_id": "as pp3_ids_ok",
    "pp3_place": "as pp3_ids_ok",
    "pp3_sum_q": "as pp3_ids_ok",
    "pp3_wrong_q": "as pp3_ids_ok",
    "pp3_used_q": "as pp3_ids_ok",
    "pp3_load_ints": "as pp3_ids_ok",
    "pp3_note_write": "its bytes are the writer's own",
    "pp3_region_magic": "one load of a word of a mapped header",
    "pp3_region_shape": "one copy out of a mapped header; its words are compared",
}


# name -> (harness, what is planted); each has to be refuted
FAULTS: dict[str, tuple[Harness, tuple[Change, ...]]] = {
    "a page without a bound": (
        _ring("READ"),
        (Change("ring/wait.h", "pp3_page_of(word) >= r->pages || (state", "(state"),),
    ),
    "a page that may be one too far": (
        _ring("PLACES"),
        (
            Change(
                "ring/proxy.h",
                "PP3_HERE(r) && page < r->pages ? r->request",
                "PP3_HERE(r) && page <= r->pages ? r->request",
            ),
        ),
    ),
    "a note of any length": (
        _ring("NOTE"),
        (Change("ring/note.c", "if (n > NOTE_BYTES)\n            ", "if (0)\n    "),),
    ),
    "a prefix longer than its room": (
        _ring("SLOT"),
        (Change("ring/slots.c", ": n > cap ? -ENOBUFS : 0", ": 0"),),
    ),
    "a give-back without a bound": (
        _ring("GIVE"),
        (
            Change(
                "ring/proxy.h",
                "!PP3_HERE(r) || pp3_page_of(mine) >= r->pages",
                "!PP3_HERE(r)",
            ),
        ),
    ),
    "a reply of any length": (
        Harness("accept.c", (), ("UNAWAITED",), 3, _FILL),
        (
            Change(
                "layout/accept.c",
                "frame_bytes != FRAME_HEAD + p->from.end + PP3_CRC_BYTES ||",
                "0 ||",
            ),
        ),
    ),
    "a size that wraps at 32 bits": (
        Harness("step.c", (), ("CHECK",), 5),
        (
            Change(
                "layout/step.c", "head.n > l->max_slots || head.depth", "head.depth"
            ),
            Change("layout/step.c", "at.end > capacity", "(uint32_t)at.end > capacity"),
        ),
    ),
    "an answer of a forked child": (
        Harness("exchange.c", (), ("FAILED",), 10),
        (
            Change(
                "proxy/exchange.c",
                "    if (!page)\n        return -EOWNERDEAD; /*",
                "    /*",
            ),
        ),
    ),
}
