"""Our own RC11, with the release sequences of C++20, over z3.

A shape becomes one formula: z3 chooses who reads from whom (rf) and the order of the
stores to each word (mo); what happens before what (hb) follows. Orders, axioms and the
limits of Relacy are assumptions, so that a formula is made once.

Axioms: coherence (hb with reads-from, mo and from-reads behind it has no way back); a
swap reads the store right before its own; no cycle of program order and rf; psc, the
order of what is seq_cst, has no cycle. Two accesses to bytes, one of them a put,
neither before the other, are a race.
Source: Lahav et al., Repairing sequential consistency in C/C++11, PLDI 2017, with
release sequences as in C++20.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import z3
from torture.litmus.shape import Orders, Shape

AXIOMS = ("coherence", "swaps", "no cycle of rf", "psc", "release sequences", "fences")
# What Relacy does not do; each makes fewer executions consistent.
LIMITS = ("C++11", "schedule", "window", "strong fences")
Formula = Any  # z3's own types say no more


@dataclass
class Event:
    """A line of a thread, or the first value of a word.

    Attributes:
        done: Whether it is reached; reads, writes: whether it then does.
        read, written: The values.
        at: Of a write its place in mo; of a read that of the write it reads.
    """

    index: int
    thread: int
    verb: str
    word: str
    site: int
    done: Formula
    reads: Formula = False
    writes: Formula = False
    read: Formula = 0
    written: Formula = 0
    at: Formula = 0
    seen: Formula = 0
    time: Formula = 0
    acquires: Formula = False
    releases: Formula = False
    total: Formula = False

    @property
    def plain(self) -> bool:
        """Whether it touches bytes."""
        return self.verb in {"get", "put"}


def _any(parts: Iterable[Formula]) -> Formula:
    listed = [part for part in parts if part is not False]
    if any(part is True for part in listed):
        return True
    return z3.Or(listed) if listed else False


def _all(*parts: Formula) -> Formula:
    listed = [part for part in parts if part is not True]
    if any(part is False for part in listed):
        return False
    return z3.And(listed) if listed else True


def _not(part: Formula) -> Formula:
    return not part if isinstance(part, bool) else z3.Not(part)


class Checker:
    """One shape's formula; `allows` asks whether it may go wrong."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.context = z3.Context()  # of its own: checkers run in several threads
        self.solver = z3.Solver(ctx=self.context)
        self.axiom = {name: z3.Bool(f"axiom {name}", self.context) for name in AXIOMS}
        self.limit = {name: z3.Bool(f"limit {name}", self.context) for name in LIMITS}
        self.order = [
            {
                name: z3.Bool(f"{site} {name}", self.context)
                for name in ("acquire", "release", "total")
            }
            for site in range(len(shape.orders))
        ]
        self.registers: dict[str, Formula] = {}
        self.events: list[Event] = []
        self._make_events()
        self.all = range(len(self.events))
        self.rf = self._reads_from()
        self._stores_in_order()
        self.sw = self._synchronizes()
        self.hb = self._happens_before()
        self._coherence()
        self._times()
        self._psc()
        self.solver.add(z3.Or(self._races(), self._value(shape.bad)))

    def allows(
        self,
        orders: Orders,
        *,
        without: Iterable[str] = (),
        limits: Iterable[str] = (),
    ) -> bool:
        """Whether some consistent execution races or ends badly.

        Args:
            orders: One for each site of the shape.
            without: Axioms left out.
            limits: Limits of Relacy put in.

        Returns:
            True where one does.

        Raises:
            RuntimeError: z3 gave up.
        """
        absent, present = set(without), set(limits)
        assumed = [v if n not in absent else _not(v) for n, v in self.axiom.items()]
        assumed += [v if n in present else _not(v) for n, v in self.limit.items()]
        for order, site in zip(orders, self.order, strict=True):
            holds = {
                "acquire": order in {"acquire", "acq_rel", "seq_cst"},
                "release": order in {"release", "acq_rel", "seq_cst"},
                "total": order == "seq_cst",
            }
            assumed += [v if holds[n] else _not(v) for n, v in site.items()]
        answer = self.solver.check(*assumed)
        if answer == z3.unknown:
            raise RuntimeError(f"{self.shape.name}: {self.solver.reason_unknown()}")
        return bool(answer == z3.sat)

    # ---- events ----------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Formula:
        match node:
            case ast.Constant(value=bool() as value):
                found = z3.BoolVal(value, self.context)
            case ast.Constant(value=int() as value):
                found = z3.IntVal(value, self.context)
            case ast.UnaryOp(op=ast.USub(), operand=part):
                found = -self._value(part)
            case ast.Name(id=name):
                found = self.registers[name]
            case ast.BoolOp(op=op, values=parts):
                join = z3.And if isinstance(op, ast.And) else z3.Or
                found = join([self._value(part) for part in parts])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = self._value(left) + self._value(right)
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                a, b = self._value(left), self._value(right)
                found = {ast.Eq: a == b, ast.NotEq: a != b, ast.GtE: a >= b}[type(sign)]
            case _:
                raise ValueError(ast.dump(node))
        return found

    def _event(
        self, thread: int, verb: str, word: str, site: int, done: Formula
    ) -> Event:
        i = len(self.events)
        event = Event(i, thread, verb, word, site, done)
        event.time = z3.Int(f"time {i}", self.context)
        self.events.append(event)
        return event

    def _make_events(self) -> None:
        for word in self.shape.words:
            event = self._event(-1, "first", word, -1, True)
            event.writes = True
            event.written = z3.IntVal(self.shape.start.get(word, 0), self.context)
            event.at = z3.IntVal(0, self.context)
            self.registers[f"final__{word}"] = z3.Int(f"final {word}", self.context)
        for number, lines in enumerate(self.shape.threads.values()):
            for line in lines:
                done = _all(*(self._value(test) for test in line.conditions))
                event = self._event(number, line.verb, line.word, line.site, done)
                self._fill(event, line.register, [self._value(v) for v in line.values])

    def _fill(self, event: Event, register: str, values: list[Formula]) -> None:
        i = event.index
        if event.verb in {"load", "get", "add", "swap"}:
            event.reads = event.done
            event.read = z3.Int(f"read {i}", self.context)
            event.seen = z3.Int(f"seen {i}", self.context)
            self.registers[register] = z3.If(event.done, event.read, 0)
        if event.verb in {"store", "put", "add", "swap"}:
            event.at = z3.Int(f"at {i}", self.context)
            event.writes = event.done
            event.written = values[-1]
            if event.verb == "add":
                event.written = event.read + values[0]
            if event.verb == "swap":
                event.writes = _all(event.done, event.read == values[0])
        if event.plain:
            return
        flags = self.order[event.site]
        lost = self.order[event.site + 1] if event.verb == "swap" else flags
        won = event.writes
        event.acquires = z3.If(won, flags["acquire"], lost["acquire"])
        event.total = z3.If(won, flags["total"], lost["total"])
        event.releases = flags["release"]
        if event.verb == "fence":
            event.acquires, event.total = flags["acquire"], flags["total"]

    def _before(self, a: Event, b: Event) -> bool:
        """In the order of the program."""
        return a.thread == b.thread and a.index < b.index and a.thread >= 0

    def _same_word(self, a: Event, b: Event) -> bool:
        return a.word == b.word != ""

    # ---- rf and mo -------------------------------------------------------------------

    def _reads_from(self) -> dict[tuple[int, int], Formula]:
        rf: dict[tuple[int, int], Formula] = {}
        for r in self.events:
            if r.reads is False:
                continue
            sources = []
            for w in self.events:
                if w.writes is False or w is r or not self._same_word(w, r):
                    continue
                edge = rf[w.index, r.index] = z3.Bool(
                    f"rf {w.index} {r.index}", self.context
                )
                sources.append(edge)
                self.solver.add(
                    z3.Implies(
                        edge,
                        _all(r.reads, w.writes, r.read == w.written, r.seen == w.at),
                    )
                )
            self.solver.add(z3.Implies(r.reads, _any(sources)))
            for one, other in combinations(sources, 2):
                self.solver.add(_not(z3.And(one, other)))
        return rf

    def _stores_in_order(self) -> None:
        writes = [e for e in self.events if e.writes is not False]
        for a, b in combinations(writes, 2):
            if self._same_word(a, b):
                self.solver.add(a.at != b.at)
        for w in writes:
            if w.thread >= 0:
                self.solver.add(w.at > 0)
            final = self.registers[f"final__{w.word}"]
            others = [o for o in writes if o is not w and self._same_word(o, w)]
            last = _all(w.writes, *(z3.Implies(o.writes, o.at < w.at) for o in others))
            self.solver.add(z3.Implies(last, final == w.written))
            if w.reads is False:
                continue
            between = _any(_all(o.writes, w.seen < o.at, o.at < w.at) for o in others)
            right = _all(w.seen < w.at, _not(between))
            self.solver.add(z3.Implies(_all(w.writes, self.axiom["swaps"]), right))

    # ---- hb --------------------------------------------------------------------------

    def _sequences(self) -> dict[tuple[int, int], Formula]:
        """rs: whether a write belongs to the release sequence of another."""
        rs: dict[tuple[int, int], Formula] = {}
        heads = [e for e in self.events if e.writes is not False and not e.plain]
        heads = [e for e in heads if e.thread >= 0]
        for w, x in product(heads, heads):
            if w is not x and self._same_word(w, x):
                rs[w.index, x.index] = z3.Bool(f"rs {w.index} {x.index}", self.context)
        for w in heads:
            rs[w.index, w.index] = w.writes
        for (wi, xi), edge in rs.items():
            if wi == xi:
                continue
            x = self.events[xi]
            ways = []
            for y in heads:
                if y is x or (wi, y.index) not in rs:
                    continue
                if x.reads is not False:
                    swap = _all(rs[wi, y.index], self.rf[y.index, xi], x.writes)
                    ways.append(_all(self.axiom["release sequences"], swap))
                elif self._before(y, x):
                    # C++11: a store of the same thread right behind goes on with it
                    next_to = _not(
                        _any(
                            _all(o.writes, y.at < o.at, o.at < x.at)
                            for o in heads
                            if o not in (x, y) and self._same_word(o, x)
                        )
                    )
                    follows = _all(rs[wi, y.index], x.writes, y.at < x.at, next_to)
                    ways.append(_all(self.limit["C++11"], follows))
            self.solver.add(edge == _any(ways))
        return rs

    def _synchronizes(self) -> dict[tuple[int, int], Formula]:
        rs = self._sequences()
        observed: dict[tuple[int, int], list[Formula]] = {}
        for (wi, xi), in_sequence in rs.items():
            for r in self.events:
                if (xi, r.index) in self.rf:
                    way = _all(in_sequence, self.rf[xi, r.index])
                    observed.setdefault((wi, r.index), []).append(way)
        sw: dict[tuple[int, int], list[Formula]] = {}
        fences = [e for e in self.events if e.verb == "fence"]
        on = self.axiom["fences"]
        for (wi, ri), ways in observed.items():
            w, r = self.events[wi], self.events[ri]
            if w.thread == r.thread:
                continue
            seen = _any(ways)
            froms = [(w, w.releases)]
            froms += [
                (f, _all(on, f.done, f.releases)) for f in fences if self._before(f, w)
            ]
            tos = [(r, r.acquires)]
            tos += [
                (f, _all(on, f.done, f.acquires)) for f in fences if self._before(r, f)
            ]
            for (a, releases), (b, acquires) in product(froms, tos):
                way = _all(releases, acquires, seen)
                sw.setdefault((a.index, b.index), []).append(way)
        for a, b in product(fences, fences):
            if a.thread != b.thread:
                strong = _all(a.done, b.done, a.total, b.total, a.time < b.time)
                way = _all(self.limit["strong fences"], strong)
                sw.setdefault((a.index, b.index), []).append(way)
        return {pair: _any(ways) for pair, ways in sw.items()}

    def _happens_before(self) -> dict[tuple[int, int], Formula]:
        """Pairs that cannot be are absent.

        The definition has one solution, for no cycle of program order, rf and (a limit)
        the times of fences is allowed.
        """
        hb: dict[tuple[int, int], Formula] = {}
        for a, b in product(self.events, self.events):
            if a.thread == -1 and b.thread >= 0:
                hb[a.index, b.index] = b.done
            elif self._before(a, b):
                hb[a.index, b.index] = _all(a.done, b.done)
            elif a.thread != b.thread and a.thread >= 0 and b.thread >= 0:
                hb[a.index, b.index] = z3.Bool(f"hb {a.index} {b.index}", self.context)
        for a, b in product(self.events, self.events):
            if a.thread == b.thread or a.thread < 0 or b.thread < 0:
                continue
            ways = []
            for (ci, di), edge in self.sw.items():
                c, d = self.events[ci], self.events[di]
                if c is not a and not self._before(a, c):
                    continue
                if d is b:
                    ways.append(_all(a.done, edge))
                elif d.thread == b.thread and self._before(d, b):
                    ways.append(_all(a.done, edge, b.done))
                elif d.thread not in (a.thread, b.thread):
                    ways.append(_all(a.done, edge, hb[di, b.index]))
            self.solver.add(hb[a.index, b.index] == _any(ways))
        return hb

    # ---- the axioms ------------------------------------------------------------------

    def _eco(self, a: Event, b: Event) -> Formula:
        """Whether a comes before b by what stood in their word."""
        ways = []
        if a.writes is not False and b.writes is not False:
            ways.append(_all(a.writes, b.writes, a.at < b.at))
        if a.writes is not False and b.reads is not False:
            ways.append(_all(a.writes, b.reads, a.at <= b.seen))
        if a.reads is not False and b.writes is not False:
            ways.append(_all(a.reads, b.writes, a.seen < b.at))
        if a.reads is not False and b.reads is not False:
            ways.append(_all(a.reads, b.reads, a.seen < b.seen))
        return _any(ways)

    def _coherence(self) -> None:
        for (ai, bi), before in self.hb.items():
            a, b = self.events[ai], self.events[bi]
            if self._same_word(a, b):
                back = _all(self.axiom["coherence"], before, self._eco(b, a))
                self.solver.add(_not(back))

    def _times(self) -> None:
        """No cycle of program order and rf; and what Relacy's schedules add."""
        acyclic, schedule = self.axiom["no cycle of rf"], self.limit["schedule"]
        strong, window = self.limit["strong fences"], self.limit["window"]
        for a, b in product(self.events, self.events):
            if self._before(a, b) or (a.thread == -1 and b.thread >= 0):
                self.solver.add(z3.Implies(acyclic, a.time < b.time))
        for (wi, ri), edge in self.rf.items():
            before = self.events[wi].time < self.events[ri].time
            self.solver.add(z3.Implies(_all(acyclic, edge), before))
        writes = [e for e in self.events if e.writes is not False]
        for a, b in product(writes, writes):
            if a is not b and self._same_word(a, b):
                both = _all(z3.Or(schedule, window), a.writes, b.writes, a.at < b.at)
                self.solver.add(z3.Implies(both, a.time < b.time))
        for a, b in combinations(self.events, 2):
            if a.thread != b.thread and a.thread >= 0:
                self.solver.add(z3.Implies(z3.Or(strong, window), a.time != b.time))
        self._glue_fences(strong)
        for r in self.events:
            if r.reads is False or r.plain:
                continue
            newer = [
                z3.If(_all(w.writes, w.at > r.seen, w.time < r.time), 1, 0)
                for w in writes
                if w is not r and self._same_word(w, r)
            ]
            # a load has the newest or the one before; a swap, lost or won, the newest
            most = 1 if r.verb == "load" else 0
            old = z3.Sum([z3.IntVal(0, self.context), *newer])
            self.solver.add(z3.Implies(_all(window, r.reads), old <= most))

    def _glue_fences(self, strong: Formula) -> None:
        """Relacy never switches between an operation and the fence behind it."""
        for f in self.events:
            if f.verb != "fence":
                continue
            earlier = [e for e in self.events if self._before(e, f)]
            if not earlier:
                continue
            previous = earlier[-1]
            for e in self.events:
                if e.thread not in (f.thread, -1):
                    between = _all(previous.time < e.time, e.time < f.time)
                    self.solver.add(z3.Implies(strong, _not(between)))

    def _races(self) -> Formula:
        races = []
        for a, b in combinations(self.events, 2):
            if not (self._same_word(a, b) and a.plain and b.plain):
                continue
            if a.thread == b.thread or "put" not in (a.verb, b.verb):
                continue
            ordered = z3.Or(self.hb[a.index, b.index], self.hb[b.index, a.index])
            races.append(_all(a.done, b.done, _not(ordered)))
        return _any(races)

    # ---- seq_cst ---------------------------------------------------------------------

    def _hb(self, a: Event, b: Event) -> Formula:
        return self.hb.get((a.index, b.index), False)

    def _may_be_total(self, event: Event) -> bool:
        """Only what is written as seq_cst: no order here is ever made stronger."""
        if event.thread < 0 or event.plain:
            return False
        last = event.site + (1 if event.verb == "swap" else 0)
        return "seq_cst" in self.shape.orders[event.site : last + 1]

    def _psc(self) -> None:
        total = [e for e in self.events if self._may_be_total(e)]
        place = {e.index: z3.Int(f"psc {e.index}", self.context) for e in total}
        accesses = any(e.verb != "fence" for e in total)
        base = self._scb() if accesses else {}
        for a, b in product(total, total):
            if a is b:
                continue
            ways = []
            if a.verb == b.verb == "fence":
                ways = [self._hb(a, b), *self._fence_to_fence(a, b)]
            if accesses:
                ways += self._by_accesses(a, b, base)
            on = _all(self.axiom["psc"], a.done, b.done, a.total, b.total)
            before = place[a.index] < place[b.index]
            self.solver.add(z3.Implies(_all(on, _any(ways)), before))

    def _fence_to_fence(self, a: Event, b: Event) -> list[Formula]:
        """hb; eco; hb."""
        ways = []
        for x, y in product(self.events, self.events):
            there, back = self._hb(a, x), self._hb(y, b)
            if (
                x is not y
                and self._same_word(x, y)
                and not (there is False or back is False)
            ):
                ways.append(_all(there, self._eco(x, y), back))
        return ways

    def _scb(self) -> dict[tuple[int, int], Formula]:
        """po, po;hb;po between words, hb on a word, mo, from-read."""
        across = {
            (a.index, b.index): _all(a.done, b.done)
            for a, b in product(self.events, self.events)
            if self._before(a, b) and not self._same_word(a, b)
        }
        half: dict[tuple[int, int], list[Formula]] = {}
        for (ai, bi), first in across.items():
            for c in self.events:
                if (second := self._hb(self.events[bi], c)) is not False:
                    half.setdefault((ai, c.index), []).append(_all(first, second))
        scb: dict[tuple[int, int], list[Formula]] = {}
        for (ai, ci), ways in half.items():
            for (di, bi), last in across.items():
                if di == ci:
                    scb.setdefault((ai, bi), []).append(_all(_any(ways), last))
        for a, b in product(self.events, self.events):
            more = scb.setdefault((a.index, b.index), [])
            if self._before(a, b):
                more.append(_all(a.done, b.done))
            if a is b or not self._same_word(a, b):
                continue
            more.append(self._hb(a, b))
            if b.writes is not False:
                if a.writes is not False:
                    more.append(_all(a.writes, b.writes, a.at < b.at))
                if a.reads is not False:
                    more.append(_all(a.reads, b.writes, a.seen < b.at))
        return {pair: _any(ways) for pair, ways in scb.items()}

    def _by_accesses(
        self, a: Event, b: Event, scb: dict[tuple[int, int], Formula]
    ) -> list[Formula]:
        """([E] or [F];hb?);scb;([E] or hb?;[F])."""
        fronts = [(a, True)]
        if a.verb == "fence":
            fronts += [(x, self._hb(a, x)) for x in self.events]
        backs = [(b, True)]
        if b.verb == "fence":
            backs += [(y, self._hb(y, b)) for y in self.events]
        return [
            _all(there, scb[x.index, y.index], back)
            for (x, there), (y, back) in product(fronts, backs)
            if there is not False and back is not False
        ]
