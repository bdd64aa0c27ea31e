"""The memory orders of the ring's text, held against the instructions they became.

A copy of the text numbers every use of a macro of atomics.h and lays a pair of marks
around what the macro, as it is defined there, expands to. What stands between the marks
in the assembly of each build must order as the word in the text says. So a failure
names the function, the operation and the instruction.

It proves what the compiler emitted, and nothing of what a CPU does. The marks keep the
compiler from moving or merging operations across them; which instruction it takes for
each is the same without them.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from relacy import mutate
from torture.core import program

FILES = ("words.h", "ring.h", "engine.h", "proxy.h", "wait.h", "watch.h", "ring.c",
         "slots.c", "note.c", "watchdog.c", "trace.h", "recorder.c")  # fmt: skip
CALL = re.compile(r"\bPP3_(LOAD|STORE|CAS|ADD|FENCE)\(")
PARAMETERS = {
    "LOAD": "p, order",
    "STORE": "p, v, order",
    "CAS": "p, seen, v, won, lost",
    "ADD": "p, n, order",
    "FENCE": "order",
}
# Every inline function is to be there, used or not: gcc has an option for that, clang
# an attribute. clang's own assembler would drop the marks, which are comments.
SYSROOT = "-isystem/usr/aarch64-linux-gnu/include"
KEEP = "-Dinline=__attribute__((used))"
CLANG = ("clang", "--target=aarch64-linux-gnu", "-fno-integrated-as", SYSROOT, KEEP)
BUILDS = {
    "armv8-a": (program.AARCH64, "-march=armv8-a", "-mno-outline-atomics"),
    "outline atomics": (program.AARCH64,),
    "armv8.1-a": (program.AARCH64, "-march=armv8.1-a"),
    "armv8.3-a": (program.AARCH64, "-march=armv8.3-a"),
    "clang": CLANG,
    "clang armv8.1-a": (*CLANG, "-march=armv8.1-a"),
}

# What a set of instructions orders: acquire, release, or all, as a full fence.
ACQUIRE = {"acquire": "a", "acq_rel": "ar", "release": "r", "relaxed": ""}
ATOMIC = re.compile(r"^(cas|ldadd|stadd|swp)(a?l?)[bh]?$")
EXCLUSIVE = re.compile(r"^(ld(a?)x(?:p|r)|st(l?)x(?:p|r))$")
OUTLINE = re.compile(r"__aarch64_(?:cas|ldadd|swp)\d+_(relax|acq|rel|acq_rel)\b")
CALLED = {"relax": "", "acq": "a", "rel": "r", "acq_rel": "ar"}


@dataclass(frozen=True)
class Site:
    """One use of a macro.

    Attributes:
        place: File, function, operation and word.
        macro: LOAD, STORE, CAS, ADD or FENCE.
        order: As the text has it; of a swap, when it wins.
    """

    place: str
    macro: str
    order: str


def number(core: Path) -> list[Site]:
    """Numbers every use in a copy of the text, and lays the marks.

    Args:
        core: From `program.copy`.

    Returns:
        The uses; the index of each is its number.
    """
    others = [
        path.name
        for path in core.rglob("*.[ch]")
        if path.name not in {*FILES, "atomics.h"}
        and path.parent != core / "bench"
        and CALL.search(path.read_text())
    ]
    if others:
        message = f"the macros are used in {', '.join(others)} as well"
        raise ValueError(message)
    found: list[Site] = []
    for name in FILES:
        path = core / "ring" / name
        text = path.read_text(encoding="utf-8")
        pieces, at = [], 0
        for call in CALL.finditer(text):
            spans = list(mutate._arguments(text, call.end()))
            begin, end = spans[mutate.ORDERS[call[1]][0]]
            order = re.match(r"\s*(\w+)", text[begin:end])
            word = "" if call[1] == "FENCE" else mutate._word(text[slice(*spans[0])])
            function = mutate._function(text, call.start())
            pieces.append(f"{text[at : call.end()]}{len(found)}, ")
            at = call.end()
            place = f"{name} {function}: {call[1]} {word}"
            found.append(Site(place, call[1], order[1] if order else "?"))
        path.write_text("".join(pieces) + text[at:], encoding="utf-8")
    _mark(core / "ring" / "atomics.h")
    return found


def _mark(path: Path) -> None:
    """The macros as they are defined, under another name, between marks."""
    text = re.sub(
        r"#define PP3_(LOAD|STORE|CAS|ADD|FENCE)\(",
        r"#define PP3_BARE_\1(",
        path.read_text(encoding="utf-8"),
    )
    lines = [
        "#define PP3_MARK(what, at) \\",
        '__asm__ volatile("// pp3 " what " " #at ::: "memory")',
    ]
    for macro, names in PARAMETERS.items():
        bare = f"PP3_BARE_{macro}({names})"
        value = macro not in {"STORE", "FENCE"}
        inside = f"__auto_type v_ = {bare};" if value else f"{bare};"
        lines.append(
            f"#define PP3_{macro}(at, {names}) __extension__({{ "
            f'PP3_MARK("begin", at); {inside} PP3_MARK("end", at); '
            f"{'v_;' if value else '(void)0;'} }})"
        )
    guard = "#endif /* PP3_MACHINE */"
    path.write_text(text.replace(guard, "\n".join([*lines, guard])), encoding="utf-8")


def assembly(core: Path, build: str) -> str:
    """What a compiler makes of every file of a numbered copy."""
    text = ""
    for name in FILES:
        if name.endswith(".c"):
            done = subprocess.run(
                [*BUILDS[build], "-std=c11", "-D_GNU_SOURCE", "-O2",
                 "-fno-strict-aliasing", "-fkeep-inline-functions", "-w", f"-I{core}",
                 "-S", str(core / "ring" / name), "-o", "-"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(done.stderr[:2000])
            text += done.stdout
    return text


def regions(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each pair of marks of the assembly: its number, the instructions between."""
    open_: list[tuple[int, list[str]]] = []
    for line in text.splitlines():
        if mark := re.search(r"// pp3 (begin|end) (\d+)", line):
            at = int(mark[2])
            if mark[1] == "begin":
                open_.append((at, []))
            elif open_ and open_[-1][0] == at:
                yield open_.pop()
        elif open_ and (code := re.match(r"\s+([a-z][\w.]*)\s*(.*)", line)):
            open_[-1][1].append(f"{code[1]} {code[2]}")
        if ".cfi_endproc" in line:
            yield from open_
            open_ = []


def ordered(instructions: list[str]) -> str:
    """What they order: letters of "a" acquire, "r" release, "f" a full fence."""
    found = ""
    for line in instructions:
        name, _, rest = line.partition(" ")
        if name in {"ldar", "ldapr"}:
            found += "a"
        elif name == "stlr":
            found += "r"
        elif name == "dmb":
            found += {"ish": "arf", "ishld": "a", "ishst": "s"}.get(rest.strip(), "")
        elif called := OUTLINE.search(rest):
            found += CALLED[called[1]]
        elif single := ATOMIC.match(name):
            found += single[2].replace("l", "r")
        elif pair := EXCLUSIVE.match(name):
            found += "a" * bool(pair[2]) + "r" * bool(pair[3])
    return found


def _does(site: Site, instructions: list[str]) -> bool:
    """Whether there is an instruction of the operation at all."""
    names = " ".join(instructions)
    wanted = {
        "LOAD": r"\bld",
        "STORE": r"\bst",
        "CAS": r"\bcas|_cas\d|\bst\w*x",
        "ADD": r"\b(ld|st)add|_ldadd\d|\bst\w*x",
        "FENCE": "",
    }[site.macro]
    return re.search(wanted, names) is not None


def wanted(site: Site) -> str:
    """The letters of `ordered` that its order asks for."""
    if site.order == "seq_cst":
        return "f"
    return ACQUIRE[site.order]


def judged(sites: list[Site], text: str) -> tuple[int, list[str]]:
    """Holds every region against its site.

    Args:
        sites: From `number`.
        text: From `assembly`.

    Returns:
        How many were held, and what is wrong with the others.
    """
    wrong, seen, held = [], set(), 0
    for at, instructions in regions(text):
        site, has = sites[at], ordered(instructions)
        seen.add(at)
        held += 1
        if not _does(site, instructions) or not set(wanted(site)) <= set(has):
            wrong.append(f"{site.place} {site.order}: {'; '.join(instructions)[:120]}")
    unseen = [site.place for at, site in enumerate(sites) if at not in seen]
    return held, wrong + [f"{place}: not in the assembly" for place in unseen]


@dataclass(frozen=True)
class Plant:
    """A macro of atomics.h that does less than its order says."""

    name: str
    old: str
    new: str


PLANTS = (
    Plant(
        "a release store that releases nothing",
        "atomic_store_explicit(p, v, memory_order_##order)",
        "atomic_store_explicit(p, v, memory_order_relaxed)",
    ),
    Plant(
        "an acquire load that acquires nothing",
        "atomic_load_explicit(p, memory_order_##order)",
        "atomic_load_explicit(p, memory_order_relaxed)",
    ),
    Plant(
        "a swap that orders nothing",
        "p, seen, v, memory_order_##won,",
        "p, seen, v, memory_order_relaxed,",
    ),
    Plant(
        "a fence for the compiler alone",
        "atomic_thread_fence(memory_order_##order)",
        "atomic_signal_fence(memory_order_##order)",
    ),
    Plant(
        "a full fence that is half of one",
        "atomic_thread_fence(memory_order_##order)",
        "atomic_thread_fence(memory_order_acquire)",
    ),
    Plant(
        "an addition that releases nothing",
        "atomic_fetch_add_explicit(p, n, memory_order_##order)",
        "atomic_fetch_add_explicit(p, n, memory_order_relaxed)",
    ),
)


def gate(
    where: Path, build: str, change: Callable[[Path], None] = lambda _: None
) -> tuple[int, list[str]]:
    """Numbers a copy, compiles it, holds what came out against it.

    Args:
        where: A directory for the copy.
        build: Of BUILDS.
        change: What is planted in the copy.

    Returns:
        As `judged`.
    """
    core = program.copy(where / "orders")
    change(core)
    return judged(number(core), assembly(core, build))


def planted(where: Path, plant: Plant) -> list[str]:
    """What the gate says of a copy with a fault in a macro, by one build."""
    change = lambda core: program.replace(core, "ring/atomics.h", plant.old, plant.new)  # noqa: E731
    return gate(where, "outline atomics", change)[1]
