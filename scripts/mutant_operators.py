"""The mutants of real code, as cosmic-ray makes them: its operators, and one that removes whole statements."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

from scripts.mutants import Function, MutantKey, Source, changed_lines, sample

ROOT = Path(__file__).resolve().parents[1]


class RemoveStatement(Operator):
    """Replace a statement that has an effect by ``pass``: a call, an assignment to an attribute or item, a ``del``."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the place of the statement, if it has an effect."""
        if node.type == "simple_stmt":
            statement = node.children[0]
            target = statement.children[0] if statement.type == "expr_stmt" else statement
            augmented = statement.type == "expr_stmt" and statement.children[1].type == "augassign"
            # An assignment to a name is not removed: that is a NameError nearly always.
            if target.type in ("atom_expr", "power", "del_stmt") or augmented:
                yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replace the statement."""
        first = node.children[0].get_first_leaf()
        node.children[0] = parso.python.tree.Keyword("pass", first.start_pos, prefix=first.prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return none: only cosmic-ray's own tests ask for them."""
        return ()


# cosmic-ray has more. A removed decorator mostly breaks the import, and an `is` for an `==` is a matter of style.
_NAMES = {
    "": "AddNot ExceptionReplacer NumberReplacer ZeroIterationForLoop",
    "Replace": "AndWithOr OrWithAnd TrueWithFalse FalseWithTrue BreakWithContinue ContinueWithBreak",
    "ReplaceUnaryOperator_Delete_": "Not USub Invert",
    "ReplaceComparisonOperator_": (
        "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_GtE GtE_Lt Gt_LtE LtE_Gt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
    ),
    "ReplaceBinaryOperator_": (
        "Add_Sub Sub_Add Mul_FloorDiv FloorDiv_Mul Div_Mul Mod_FloorDiv Pow_Mul "
        "LShift_RShift RShift_LShift BitAnd_BitOr BitOr_BitAnd BitXor_BitAnd"
    ),
}
OPERATORS: dict[str, Operator] = {
    **{
        family + name: get_operator(f"core/{family}{name}")()
        for family, names in _NAMES.items()
        for name in names.split()
    },
    "RemoveStatement": RemoveStatement(),
}


@dataclass(frozen=True)
class Mutant:
    """One changed file, of which one function is used."""

    key: MutantKey
    line: int
    path: Path
    function: Function
    code: CodeType
    statement: range


def find_mutants(folder: Path, count: int, chance: random.Random) -> Iterator[Mutant]:
    """Yield a random sample of the mutants of a folder that can be compiled and put in place."""
    changes: dict[tuple[Path, tuple[int, int]], list[tuple[str, int]]] = defaultdict(list)
    texts, sources = {}, {}
    for path in sorted(folder.rglob("*.py")):
        if "_generated" in path.parts:
            continue
        texts[path] = path.read_text()
        sources[path] = Source(texts[path])
        nodes = list(ast_nodes(get_ast(texts[path])))
        for name, operator in OPERATORS.items():
            places = (position for node in nodes for position, _ in operator.mutation_positions(node))
            for occurrence, position in enumerate(places):
                if sources[path].function_at(position) is not None:
                    changes[path, position].append((name, occurrence))
    found = 0
    for (path, position), (name, occurrence) in sample(changes, count=len(changes), chance=chance):
        function = sources[path].function_at(position)
        assert function is not None
        text = mutate_code(texts[path], OPERATORS[name], occurrence)
        try:
            code = _find_code(compile(text, path, "exec", dont_inherit=True), function)
        except SyntaxError:
            continue
        line, before, after = changed_lines(texts[path], text)
        key = MutantKey(path.relative_to(ROOT).as_posix(), function.name, before, after)
        yield Mutant(key, line, path, function, code, sources[path].statement_lines(function, line))
        found += 1
        if found == count:
            return


def _find_code(code: CodeType, function: Function) -> CodeType:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    for each in inner:
        if (each.co_qualname, each.co_firstlineno) == (function.name, function.first_line):
            return each
        if function.name.startswith(f"{each.co_qualname}."):
            return _find_code(each, function)
    raise LookupError(function.name)
