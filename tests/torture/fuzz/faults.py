"""Faults planted in the C core for figure 10: what each target has to find."""

from torture.changed import Change

FAULTS: dict[str, tuple[str, tuple[Change, ...]]] = {
    # n bounded by the size alone, and the size computed in 32 bits
    "a size that wraps at 32 bits": (
        "step",
        (
            Change(
                "layout/step.c", "head.n > l->max_slots || head.depth", "head.depth"
            ),
            Change("layout/step.c", "at.end > capacity", "(uint32_t)at.end > capacity"),
        ),
    ),
    "a place that is not looked at": (
        "step",
        (
            Change(
                "layout/step.c",
                "for (uint32_t i = 0; i <= l->depth; i++)",
                "for (uint32_t i = 0; i < l->depth; i++)",
            ),
        ),
    ),
    "a length that may be shorter": (
        "accept",
        (
            Change(
                "layout/accept.c",
                "frame_bytes != FRAME_HEAD",
                "frame_bytes > FRAME_HEAD",
            ),
        ),
    ),
    "a slot without a bound": (
        "accept",
        (
            Change(
                "layout/accept.c",
                "        if (p->rows[i].slot >= p->l->max_slots)\n"
                "            return false;\n",
                "",
            ),
        ),
    ),
    "ids that may be equal": (
        "accept",
        (
            Change(
                "layout/draft.h",
                "pp3_shifted(four, after) <= four",
                "pp3_shifted(four, after) < four",
            ),
        ),
    ),
    "a note of any length": (
        "region",
        (
            Change(
                "ring/note.c",
                "if (n > NOTE_BYTES)\n            ",
                "if (0)\n            ",
            ),
        ),
    ),
    "a page without a bound": (
        "region",
        (Change("ring/wait.h", "pp3_page_of(word) >= r->pages || (state", "(state"),),
    ),
    "a frame of any length": (
        "pump",
        (
            Change(
                "proxy/pump.c",
                " &&\n               head->body_bytes <= ERROR_LEAST + ERROR_TEXT",
                "",
            ),
        ),
    ),
    "a header that is not whole": (
        "pump",
        (
            Change(
                "proxy/pump.c",
                "while (p->end - p->start >= HEAD)",
                "while (p->end - p->start >= 8)",
            ),
        ),
    ),
    "a frame that is not moved": (
        "pump",
        (Change("proxy/pump.c", "p->end >= p->most", "p->end <= p->capacity"),),
    ),
}

# Found by disagreement alone: nothing is read or written that may not be.
UNEQUAL: dict[str, tuple[Change, ...]] = {
    "mask after token": (
        Change("layout/accept.h", "PP3_REASON_MASK = 6", "PP3_REASON_MASK = 7"),
        Change("layout/accept.h", "PP3_REASON_TOKEN = 7", "PP3_REASON_TOKEN = 6"),
    ),
    "the last fault's place": (
        Change(
            "layout/accept.c", "reason < known->reason)", "reason <= known->reason)"
        ),
    ),
    "ids that may be equal": (
        Change(
            "layout/draft.h",
            "pp3_shifted(four, after) <= four",
            "pp3_shifted(four, after) < four",
        ),
    ),
    "a minus zero is a q": (
        Change("layout/draft.h", "odd |= (bits < 0) |", "odd |= (four < 0) |"),
    ),
    "a token of count 0": (
        Change("layout/accept.c", " || count[place - 1] == 0)", ")"),
    ),
    "a failed row's confidence kept": (
        Change("layout/accept.c", "p->ok[row] ? int_at(bits) : 0", "int_at(bits)"),
    ),
    "a slot that stands twice": (
        Change("layout/step.c", " || (seen >> row.slot & 1u)", ""),
    ),
    "zero is not looked at": (Change("layout/accept.c", " || head.zero != 0)", ")"),),
}

# In the checks by AVX-512, on a CPU that has it.
WIDE: dict[str, tuple[Change, ...]] = {
    "wide: ids that may be equal": (
        Change(
            "layout/draft_wide.h",
            "rises = _mm512_cmplt_epi32_mask",
            "rises = _mm512_cmple_epi32_mask",
        ),
    ),
    "wide: a token of count 0": (
        Change("layout/draft_wide.h", "(live >> (place - 1) & 1u)", "live != 0"),
    ),
    "wide: a sum above M": (
        Change("layout/draft_wide.h", "== PP3_MASS &&", ">= PP3_MASS &&"),
    ),
}

# Files of the package; each lets something out of a parser that is no error of its own.
PYTHON: dict[str, tuple[Change, ...]] = {
    "a text that is no UTF-8": (
        Change("layout/control.py", "except UnicodeDecodeError:", "except KeyError:"),
    ),
    "a RESET longer than it says": (
        Change(
            "layout/control.py",
            "if len(body_without_crc) != expected:",
            "if len(body_without_crc) < expected:",
        ),
    ),
    "a body of any length": (
        Change(
            "worker/connection.py",
            "body_lengths_ok(header.kind, header.body_bytes, self._host.profile)",
            "header.body_bytes >= 4",
        ),
    ),
    "a plan of any depth": (Change("proxy/plan.py", "    RecursionError,\n", ""),),
}
