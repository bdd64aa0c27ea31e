"""The shapes under Relacy: litmus.cpp, fed with what shape.py has read."""

import ast
import hashlib
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torture.litmus.shape import Orders, Shape

HERE = Path(__file__).resolve().parent
ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
VERBS = ("get", "put", "load", "store", "add", "swap", "fence")
# As `term` in litmus.cpp.
NUMBER, REGISTER, FINAL, AND, OR, PLUS = 0, 1, 2, 6, 7, 8
SIGNS = {ast.Eq: 3, ast.NotEq: 4, ast.GtE: 5}
WORDS = 8
MOST = 3_000_000  # executions of a search; none needs so many


@dataclass(frozen=True)
class Found:
    """What Relacy said of a shape with some orders.

    Attributes:
        outcome: clean, race, outcome, or why there is no answer.
        executions: How many it tried.
    """

    outcome: str
    executions: int

    @property
    def bad(self) -> bool:
        """True where it raced or ended badly.

        Raises:
            RuntimeError: The search did not come to its end.
        """
        if self.outcome not in {"clean", "race", "outcome"}:
            raise RuntimeError(f"Relacy: {self.outcome} after {self.executions}")
        return self.outcome != "clean"


def build(where: Path) -> Path:
    """Compiles the interpreter, once for each text of it.

    Args:
        where: A directory for it.

    Returns:
        The program.
    """
    source = HERE / "litmus.cpp"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    program = where / f"litmus-{digest}"  # an older one has another language
    if not program.exists():
        half = program.with_suffix(".half")
        command = ["g++", "-std=c++11", "-w", "-O1", str(source)]
        subprocess.run([*command, "-o", str(half)], check=True)
        half.rename(program)
    return program


class _Writer:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.words = {word: i for i, word in enumerate(shape.words)}
        self.registers: dict[str, int] = {}
        for _, line in shape.lines:
            if line.register:
                self.registers[line.register] = len(self.registers)

    def tokens(self, node: ast.expr) -> list[tuple[int, int]]:
        match node:
            case ast.Constant(value=value):
                found = [(NUMBER, int(value))]
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                found = [(NUMBER, -value)]
            case ast.Name(id=name) if name.startswith("final__"):
                found = [(FINAL, self.words[name.removeprefix("final__")])]
            case ast.Name(id=name):
                found = [(REGISTER, self.registers[name])]
            case ast.BoolOp(op=op, values=parts):
                sign = (AND if isinstance(op, ast.And) else OR, 0)
                found = self.tokens(parts[0])
                for part in parts[1:]:
                    found += [*self.tokens(part), sign]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = [*self.tokens(left), *self.tokens(right), (PLUS, 0)]
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                both = [*self.tokens(left), *self.tokens(right)]
                found = [*both, (SIGNS[type(sign)], 0)]
            case _:
                raise ValueError(ast.dump(node))
        return found

    def expression(self, node: ast.expr) -> list[int]:
        found = self.tokens(node)
        return [len(found), *(number for token in found for number in token)]

    def expressions(self, nodes: Iterable[ast.expr]) -> list[int]:
        listed = list(nodes)
        return [len(listed), *(n for node in listed for n in self.expression(node))]

    def numbers(self) -> list[int]:
        shape = self.shape
        first = [shape.start.get(word, 0) for word in self.words]
        found = [len(shape.threads), *first, *[0] * (WORDS - len(first))]
        for lines in shape.threads.values():
            found.append(len(lines))
            for line in lines:
                to = self.registers.get(line.register, -1)
                word = self.words.get(line.word, 0)
                found += [VERBS.index(line.verb), to, word, line.site]
                found += self.expressions(line.conditions)
                found += self.expressions(line.values)
        return [*found, *self.expression(shape.bad), len(shape.orders)]


def search(program: Path, shape: Shape, tries: Iterable[Orders]) -> list[Found]:
    """Searches a shape completely, once for each assignment of orders.

    Args:
        program: As built.
        shape: Which.
        tries: The assignments.

    Returns:
        What was found, in their order.
    """
    numbers = _Writer(shape).numbers()
    count = 0
    for orders in tries:
        numbers += [1, *(ORDERS.index(order) for order in orders)]
        count += 1
    command = [str(program), str(MOST)]
    done = subprocess.run(
        command,
        input=" ".join(map(str, [*numbers, 0])),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    found = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    if len(found) != count:
        raise RuntimeError(
            f"{shape.name}: {done.returncode} {done.stdout} {done.stderr}"
        )
    return [Found(outcome, int(executions)) for outcome, executions in found]
