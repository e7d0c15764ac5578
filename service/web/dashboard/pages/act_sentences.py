"""Acts of the logs in sentences, for the audit log."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from service.formatting import all_digits, count, many, moment, upper, words

_Content = Mapping[str, Any]


def act_sentence(kind: str, content: _Content) -> str | None:
    """Say what an act says in a sentence; None where its content is not that of its kind.

    Args:
        kind: one of `leaves.KINDS`.
        content: what the act says, from its row.
    """
    try:
        return _SENTENCES[kind](content)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # a row that was tampered with is shown, too


def _because(content: _Content) -> str:
    reason = content.get("reason")
    return f", because: {reason}" if reason else "."


def _place(content: _Content) -> str:
    """Where steps are: the branch only if it is not the one that every run begins with."""
    branch = content["branch"]
    return str(content["run"]) if branch == "main" else f"{content['run']}, branch {branch}"


def _steps(first: int, steps: int) -> str:
    if steps == 1:
        return f"step {count(first)}"
    return f"steps {count(first)} to {count(first + steps - 1)}"


def _appends(content: _Content) -> str:
    return f"Key {content['key'] or 'none'} records the steps of {_place(content)} from here on."


def _branch(content: _Content) -> str:
    if content["from_branch"] is None:
        return f"Opened with the run {content['run']}."
    begin = f"continues {content['from_branch']} from step {count(content['from_step'])}"
    order = f", in {'a new' if content['order'] == 'fresh' else 'the same'} order of the records"
    return f"{_place(content)}: {begin}{order if content['order'] else ''}."


def _certificate(content: _Content) -> str:
    subject = content["subject"]
    return (
        f"Issued for the {subject['kind']} {subject['name']}, by version {content['core_version']}."
    )


def _certificate_facts(content: _Content) -> str:
    return f"Facts that certificates name by their digest, {content['sha256'][:12]}…"


def _change_request(content: _Content) -> str:
    of = f" of {content['target']}" if content["target"] else ""
    asked = f"{content['person']} asks for a change ({words(content['of_kind']).lower()}{of})"
    return f"{asked}{_because(content)}"


def _change_decision(content: _Content) -> str:
    kind, asked_by = words(content["of_kind"]).lower(), content["requested_by_person"]
    said = f"The change that {asked_by} asked for ({kind}) was {content['decision']}"
    return f"{said} by {content['person']}{_because(content)}"


def _copied(content: _Content) -> str:
    return f"A copy of ledger {content['from']} got an identity of its own{_because(content)}"


def _correction(content: _Content) -> str:
    event, steps = content["event"], _steps(content["first_step"], content["steps"])
    kinds = (words(event[part]["kind"]).lower() for part in ("mechanism", "sampling"))
    return f"{_place(content)}: {steps} ran as {', '.join(kinds)}{_because(content)}"


def _dataset(content: _Content) -> str:
    size, unit = count(content["dataset_size"]), content["privacy_unit"]
    return f"{content['name']} was registered with {size} records; the privacy unit is {unit}."


def _finding(content: _Content) -> str:
    about = words(content["of_kind"]).lower()
    return f"A finding about the {about} of {_place(content)}: {content['claim']}."


def _incident_note(content: _Content) -> str:
    about = f"{words(content['of_kind'])} of {moment(content['occurred_at'])}"
    to = f" to {content['assignee']}" if content["assignee"] else ""
    text = f": {content['text']}" if content["text"] else "."
    return f"{about}: {words(content['action']).lower()}{to}{text}"


def _key_created(content: _Content) -> str:
    of = content["datasets"]
    reach = "every dataset" if of is None else ", ".join(of) or "no dataset"
    return f"{content['name']}, {content['scope']}, of {content['person']}, for {reach}."


def _key_rotated(content: _Content) -> str:
    until = moment(content["previous_until"])
    return f"{content['name']} has a new secret; the one before works until {until}."


def _key_revoked(content: _Content) -> str:
    return f"{content['name']} works no more{_because(content)}"


def _lineage(content: _Content) -> str:
    most = "exactly one row" if content["exactly_one"] else None
    rows = most or f"at most {many(content['most_rows'], 'row')}"
    return f"Made from {content['ancestor']}: each of its records has {rows} here."


def _overdraft(content: _Content) -> str:
    detail = content["detail"]
    kind, _, name = detail["scope"].partition(":")
    after = f" by run {content['run']}" if content["run"] else ""
    gone = f"ε {upper(detail['spent'])}" if detail["spent"] is not None else "more than any number"
    limit = all_digits(detail["limit"])
    return f"The limit of the {kind} {name} is exceeded{after}: {gone} of {limit}."


def _reconciled(content: _Content) -> str:
    return "Recovery ended: the ledger accepts every write again."


def _recovering(content: _Content) -> str:
    return f"Steps that were lost may be sent again{_because(content)}"


def _release(content: _Content) -> str:
    return f"The parameters of {_place(content)} after step {count(content['step'])} were shown."


def _reservation(content: _Content) -> str:
    held = _steps(content["first_step"], content["steps"])
    until = moment(content["expires_at"])
    return f"{content['name']} holds {held} of {_place(content)} until {until}."


def _reservation_end(content: _Content) -> str:
    end = f"from step {count(content['end_step'])} on"
    return f"{content['name']} of {_place(content)} is {content['state']} {end}{_because(content)}"


def _restatement(content: _Content) -> str:
    about, core = content["about"], content["core_version"]
    return f"Version {core} recomputed a certificate of the {about['kind']} {about['name']}."


def _restored(content: _Content) -> str:
    taken = moment(content["taken_at"])
    return f"Restored from the backup of {taken}, which has {count(content['entries'])} entries."


def _run(content: _Content) -> str:
    limit = content["budget_epsilon"]
    own = f", with a budget of ε {all_digits(limit)} of its own" if limit is not None else ""
    return f"{content['name']} was registered{own}."


def _run_state(content: _Content) -> str:
    again = ", with steps recorded after its end" if content["reopened"] else ""
    return f"{content['run']} is {words(content['state']).lower()}{again}."


def _run_end_reason(content: _Content) -> str:
    return f"{content['run']} was closed as {words(content['state']).lower()}{_because(content)}"


def _settings(content: _Content) -> str:
    epsilon, delta = content["budget_epsilon"], content["budget_delta"]
    limit = "No limit"
    if epsilon is not None:
        limit = f"Limit ε {all_digits(epsilon)} at δ = {all_digits(delta)}"
    frozen = ", frozen" if content["frozen"] else ""
    begun = content["revision"] == 1
    return f"{limit}{frozen}{' from the beginning.' if begun else _because(content)}"


def _suspended(content: _Content) -> str:
    return f"The ledger accepts no writes{_because(content)}"


_SENTENCES: Final[Mapping[str, Callable[[_Content], str]]] = {
    "appends": _appends,
    "branch": _branch,
    "certificate": _certificate,
    "certificate_facts": _certificate_facts,
    "change_decision": _change_decision,
    "change_request": _change_request,
    "copied": _copied,
    "correction": _correction,
    "dataset": _dataset,
    "finding": _finding,
    "incident_note": _incident_note,
    "key_created": _key_created,
    "key_revoked": _key_revoked,
    "key_rotated": _key_rotated,
    "lineage": _lineage,
    "overdraft": _overdraft,
    "reconciled": _reconciled,
    "recovering": _recovering,
    "release": _release,
    "reservation": _reservation,
    "reservation_end": _reservation_end,
    "restatement": _restatement,
    "restored": _restored,
    "run": _run,
    "run_end_reason": _run_end_reason,
    "run_state": _run_state,
    "settings": _settings,
    "suspended": _suspended,
}
