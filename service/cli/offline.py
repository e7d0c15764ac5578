"""The commands epsilon, calibrate, bounds, bound and openapi: no database is opened."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.options import build_failure
from service.errors import InvalidRequestError, LedgerError
from service.formatting import lower, upper

WIDE: Final = 140  # columns, from which on a theorem has one line

_UNAMPLIFIED: Final = " (epsilon if every batch had held every record)"
_ALTERNATIVE: Final = (
    "The guarantee is epsilon; each alternative is what another theorem gives for the same steps."
)
_OUTSIDE: Final = {
    "batch_sizes": "the verdict on the batch sizes",
    "audit": "the result of an audit with the records of people",
}


def _document(file: Path) -> Any:
    from pydantic import ValidationError

    from service.schemas.field_errors import fault_list
    from service.schemas.ledger_document import LedgerDocument
    from service.web.strict_json import parse_json

    try:
        body = file.read_bytes()
    except OSError as error:
        raise build_failure(f"{file}: {error.strerror}") from None
    try:
        content = parse_json(body, where=str(file))
        if problem := _problem(content):
            raise build_failure(f"{file}: the service refused the request: {problem}")
        return LedgerDocument.model_validate(content)
    except ValidationError as error:
        fault = fault_list(list(error.errors()))[0]
        raise build_failure(f"{file}: {fault['location']}: {fault['message']}") from None
    except LedgerError as error:
        raise build_failure(error.detail) from None


def _problem(content: Any) -> str | None:
    """What a problem document says that was saved in place of a ledger; None if it is another."""
    kind = content.get("type") if isinstance(content, dict) else None
    if not (isinstance(kind, str) and kind.startswith("/problems/")):
        return None
    return f"{content.get('title')}. {content.get('detail')}"


def epsilon(
    ledger: Annotated[Path, typer.Argument(help="a ledger document", metavar="LEDGER.json")],
    delta: Annotated[float, typer.Option(help="in (0, 1)")],
    accountant: Annotated[str, typer.Option(help="best, pld, rdp, gdp or odometer")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="the guarantee as JSON")] = False,
) -> None:
    """Recompute the guarantee of a ledger document, offline.

    The guarantee is "epsilon". "unamplified" is what it would be if every batch had held every
    record; each "alternative" is what another theorem gives for the same steps, with its status.
    """
    from accounting.math_library import InaccurateLibraryError
    from service.cli.calculations import account_document

    if not 0 < delta < 1:
        raise build_failure("--delta: must lie in (0, 1)")
    document = _document(ledger)
    try:
        answer = account_document(document, delta=delta, accountant=accountant)
    except InvalidRequestError as error:
        raise build_failure(f"{ledger}: {error.detail}") from None
    except ValueError as error:
        raise build_failure(f"--accountant: {error}") from None
    except InaccurateLibraryError as error:
        raise build_failure(str(error)) from None
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
        return
    _show(answer)
    for left in answer.outside_guarantee:
        typer.echo(f"outside this guarantee: {_OUTSIDE[left.kind]} of {left.branch}")


def calibrate(
    ledger: Annotated[Path, typer.Argument(help="a ledger document", metavar="LEDGER.json")],
    epsilon: Annotated[float, typer.Option(help="target that must not be exceeded; in (0, 1e6]")],
    delta: Annotated[float, typer.Option(help="in (0, 1)")],
    parameter: Annotated[
        str, typer.Option("--for", help="noise_multiplier, steps or sampling_probability")
    ],
    accountant: Annotated[str, typer.Option(help="best, pld, rdp, gdp or odometer")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="the answer as JSON")] = False,
) -> None:
    """Find the least noise, the most steps or the highest rate for a target epsilon.

    Noise is scaled by one factor in all events and the least is named; steps are those of the last
    event; the rate is one for all Poisson samplings, truncated ones among them.
    """
    from accounting.accountants.best_bound import BEST
    from accounting.accountants.best_first import ACCOUNTANTS
    from accounting.calibration import Parameter
    from accounting.math_library import InaccurateLibraryError
    from service.cli.calculations import calibrate_document
    from service.schemas.plan_response import plan_answer

    if parameter not in list(Parameter):
        raise build_failure(f"--for: must be one of {', '.join(Parameter)}")
    if accountant not in (BEST, *ACCOUNTANTS):
        raise build_failure(f"--accountant: must be one of {', '.join((BEST, *ACCOUNTANTS))}")
    if not 0 < delta < 1:
        raise build_failure("--delta: must lie in (0, 1)")
    document, wanted = _document(ledger), Parameter(parameter)
    try:
        found = calibrate_document(
            document, parameter=wanted, epsilon=epsilon, delta=delta, accountant=accountant
        )
    except InvalidRequestError as error:
        raise build_failure(error.detail) from None
    except InaccurateLibraryError as error:
        raise build_failure(str(error)) from None
    answer = plan_answer(found.calibrated.guarantee, counts=found.counts, solved=found.calibrated)
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
        return
    typer.echo(f"{parameter} {found.calibrated.value!r}")
    for index, noise in found.noises():
        typer.echo(f"events[{index}].mechanism.noise_multiplier {noise!r}")
    _show(answer)


def _show(answer: Any) -> None:
    rows: list[tuple[str, str]] = []
    if answer.epsilon is None:
        rows.append(("epsilon", f"none: {answer.reason}"))
    else:
        rows.append(("epsilon", f"{upper(answer.epsilon)} (upper bound)"))
    if answer.epsilon_lower is not None:
        rows.append(("epsilon_lower", f"{lower(answer.epsilon_lower)} (some dataset loses this)"))
    rows.append(("delta", repr(answer.delta)))
    plain = ("neighboring_relation", "accountant", "bound", "status", "valid_for", "steps")
    rows += [(name, str(getattr(answer, name))) for name in plain]
    rows.append(("assumptions", ", ".join(answer.assumptions) or "none"))
    if answer.unamplified_epsilon is not None:
        rows.append(("unamplified", upper(answer.unamplified_epsilon) + _UNAMPLIFIED))
    rows += [
        ("alternative", f"{upper(other.epsilon)} {other.bound} ({other.status})")
        for other in answer.alternatives
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f" {name:{width}}  {value}")
    if answer.alternatives:
        typer.echo(_ALTERNATIVE)
    if (smaller := answer.smaller_bound) is not None:
        typer.echo(
            f"{smaller.bound} proves epsilon {upper(smaller.epsilon)} at delta {smaller.delta!r}. "
            f'It is {smaller.status}, which "accept" does not name'
        )
    if (poisson := answer.poisson_would_say) is not None:
        claim = f"Poisson accounting would say {upper(poisson.epsilon)}"
        typer.echo(f"{claim}: not applicable to batches taken in turn")


def bounds(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="only theorems whose id, status or source contains all of these words"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the registry as JSON")] = False,
) -> None:
    """List every theorem the accountant may use, or those that contain some words."""
    from service.guarantees.theorem_catalog import bound_answers

    wanted = [word.lower() for word in words or ()]
    answers = [
        answer
        for answer in bound_answers().values()
        if all(word in f"{answer.id} {answer.status} {answer.source}".lower() for word in wanted)
    ]
    if as_json:
        typer.echo(json.dumps([answer.model_dump() for answer in answers], indent=2))
        return
    if not answers:
        raise build_failure("No theorem has these words in its id, status or source.", code=1)
    width = shutil.get_terminal_size((WIDE, 24)).columns  # a pipe gets all of each line
    for answer in answers:
        relations = "all" if len(answer.relations) == 3 else ", ".join(answer.relations)
        if width >= WIDE:
            typer.echo(f"{answer.id:44} {answer.status:12} {relations:34} {answer.source}")
        else:
            typer.echo(f"{answer.id}  {answer.status}  {relations}")
            typer.echo(f"    {_cut(answer.source, width - 4)}")


def _cut(text: str, width: int) -> str:
    """The text in one line of a terminal; `--json` has all of it."""
    return text if len(text) <= width else text[: width - 1] + "…"


def bound(
    identifier: Annotated[str, typer.Argument(help="id from `dpledger bounds`", metavar="ID")],
    params: Annotated[str, typer.Option(help="its parameters, a JSON object")],
) -> None:
    """Evaluate a theorem of the registry and print its value as JSON."""
    from service.cli.calculations import evaluate_theorem
    from service.guarantees.theorem_catalog import bound_answers
    from service.web.strict_json import parse_json

    try:
        typer.echo(
            json.dumps(evaluate_theorem(identifier, parse_json(params.encode(), where="--params")))
        )
    except (LedgerError, UnicodeEncodeError) as error:
        raise build_failure(" ".join(str(error).split())) from None
    found = bound_answers()[identifier]
    if found.counterexample:  # what is not proved never passes for a bound
        typer.echo(f"This is {found.status} and bounds nothing. {found.counterexample}", err=True)


def openapi() -> None:
    """Print the OpenAPI document of the HTTP interface."""
    from service.app import openapi_document

    typer.echo(json.dumps(openapi_document(), indent=1, sort_keys=True))
