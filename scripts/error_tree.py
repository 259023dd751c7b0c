"""The tree and the table of errors, from their classes."""

from __future__ import annotations

from collections.abc import Iterator

from strata.errors import StrataError

ERRORS = """\
# Errors

Every error that Strata raises on purpose is a `StrataError`, and is imported from `strata.errors`. Its fields are
attributes, and its message says what happened, to what, and what to do. Each class has a `recovery` that says what a
caller may do:

| `recovery` | what it means |
|---|---|
| `Recovery.RETRY` | the same call may succeed later, as it is |
| `Recovery.REJOIN` | the worker must join again, or restore in the new generation; `run.steps` does both |
| `Recovery.STOP` | the same call fails again until someone changes something |

A client raises an error of the coordinator as the same class, with the same fields. `except MembershipError`
catches every error of a worker that is not, or no longer, a member of the generation that its command names. A save
never raises one into training: its handle fails with a `CheckpointAbortedError`.

A class in bold is a group: `except` with that class catches all classes below it in the tree.

| error | when | recovery |
|---|---|---|
{rows}

```
{tree}
```
"""


def draw_tree(kind: type[StrataError] = StrataError, *, indent: str = "") -> Iterator[str]:
    """Yield the lines of the tree below an error, in the order of the source."""
    if not indent:
        yield kind.__name__
    below = children(kind)
    for number, each in enumerate(below, start=1):
        is_last = number == len(below)
        others = ", ".join(other.__name__ for other in each.__bases__[1:])
        also = f" (and {others})" if others else ""
        yield f"{indent}{'└──' if is_last else '├──'} {each.__name__}{also}"
        yield from draw_tree(each, indent=indent + ("    " if is_last else "│   ")) if children(each) else ()


def children(kind: type[StrataError]) -> list[type[StrataError]]:
    """Return the errors whose first parent this is; errors that tests make are not Strata's."""
    below = [each for each in kind.__subclasses__() if each.__bases__[0] is kind]
    return [each for each in below if each.__module__.startswith("strata.errors.")]


def walk(kind: type[StrataError] = StrataError) -> Iterator[type[StrataError]]:
    """Yield an error and all below it, in the order of the tree."""
    yield kind
    for each in children(kind):
        yield from walk(each)


def errors_page() -> str:
    """Return docs/errors.md."""
    return ERRORS.format(rows="\n".join(map(_row, walk())), tree="\n".join(draw_tree()))


def _row(kind: type[StrataError]) -> str:
    name = f"**`{kind.__name__}`**" if children(kind) else f"`{kind.__name__}`"
    when = (kind.__doc__ or "").splitlines()[0].replace("``", "`").replace("|", "\\|").rstrip(".")
    return f"| {name} | {when} | {kind.recovery.name} |"
