"""A certificate for people: one page, which prints well, and loads and runs nothing."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from service.formatting import accountant_words, count, lower, upper, words

_STYLE: Final = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0 1.5em}"
    "th,td{text-align:left;vertical-align:top;padding:.2em .8em .2em 0}"
    "th,td{border-bottom:1px solid #ccc}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".loud{border:3px solid #a00;padding:.5em 1em}pre{white-space:pre-wrap}"
    "code{overflow-wrap:anywhere}@media print{a{color:inherit}tr,pre{break-inside:avoid}}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# Nothing may be loaded, run, framed or sent; the style is the one of this file.
CERTIFICATE_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox allow-downloads"
)


def certificate_page(raw: bytes) -> str:
    """The page of a certificate's file, with the file in it."""
    envelope: dict[str, Any] = json.loads(raw)
    said = envelope["certificate"]
    facts = said["facts"]
    title = f"Certificate of {facts['subject']['kind']} {facts['subject']['name']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _warnings(said),
        _rows(_subject(said)),
        "<h2>What is proved</h2>",
        _table(
            ("delta", "epsilon at most", "epsilon at least", "accountant", "theorem", "status",
             "assumptions"),
            (_statement(one) for one in said["statements"]),
        ),
        "<h2>Runs</h2>",
        _table(
            ("run", "state", "sampling", "not covered", "steps beyond a limit",
             "steps reserved beyond it", "registered by", "steps sent by", "corrections",
             "branches", "shown iterates"),
            (_standing(one) for one in said["standing"]),
        ),
        _part("Audits", ("run", "audit", "guessed right", "epsilon at least", "at level",
                         "contradicts the certificate"),
              (row for one in said["standing"] for row in _audit_rows(one))),
        _part("Known defects of libraries", ("run", "advisory", "version", "consequence", "source"),
              (_advisory(one) for one in said["advisories"])),
        _part("Restatements", ("at", "by version", "delta", "accountant", "epsilon was",
                               "epsilon is"),
              (row for one in said["restatements"] for row in _restatement_rows(one))),
        _part("Incidents", ("run", "kind", "count", "first at entry", "last at entry"),
              _incidents(facts)),
        _part("Limits", ("revision", "epsilon", "delta", "accepted", "reason", "from", "set by",
                         "asked for by"),
              (_limit(one) for one in facts["dataset"]["limits"])),
        _part("Approved changes", ("run", "change", "reservation", "branch", "first step", "steps",
                                   "reason", "at", "approved by", "asked for by"),
              _approved_changes(facts)),
        "<h2>Theorems</h2>",
        *(_theorem(one) for one in said["theorems"]),
        "<h2>How to check it</h2>",
        _how(raw, envelope),
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(parts)}</body></html>"
    )


def _cell(value: Any) -> str:
    kind = ' class="n"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(_words(value))}</td>"


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return "" if value is None else str(value)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _part(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    found = list(rows)
    return f"<h2>{escape(title)}</h2>{_table(heads, found)}" if found else ""


def _rows(pairs: Iterable[tuple[str, Any]]) -> str:
    body = "".join(
        f"<tr><th>{escape(name)}</th>{_cell(value)}</tr>" for name, value in pairs if value
    )
    return f"<table>{body}</table>"


def _warnings(said: dict[str, Any]) -> str:
    low = [one for one in said["restatements"]
           if any(change["direction"] == "too_low" for change in one["changes"])]  # fmt: skip
    lines = [
        f"What was certified at sequence {one['sequence']} was TOO LOW: version "
        f"{one['core_version']} says so."
        for one in low
    ]
    if said["advisories"]:
        lines.append("A known defect of a library may have made the record wrong; see below.")
    for one in said["standing"]:
        if one["sampling_status"] == "contradicted":
            lines.append(
                f"Epsilon may be TOO LOW: the code of run {one['run']} was seen to sample "
                "otherwise than declared. It holds for the steps as recorded and corrected."
            )
        if any(audit["contradicts"] for audit in one["audits"]):
            lines.append(f"Epsilon is TOO LOW: an audit of run {one['run']} contradicts it.")
    return "".join(f'<p class="loud">{escape(line)}</p>' for line in lines)


def _subject(said: dict[str, Any]) -> list[tuple[str, Any]]:
    facts, dataset = said["facts"], said["facts"]["dataset"]
    return [
        ("dataset", dataset["name"]),
        ("one record is", dataset["privacy_unit"]),
        ("records", count(dataset["dataset_size"])),
        ("neighbouring relation", words(dataset["neighboring_relation"])),
        ("made from", dataset["parents"]),
        ("steps", count(said["statements"][0]["steps"])),
        ("as of entry", count(facts["sequence"])),
        ("model SHA-256", said["model_sha256"]),
        ("issued", said["issued_at"]),
        ("computed by", ", ".join(f"{name} {text}" for name, text in said["versions"].items())),
    ]


def _statement(one: dict[str, Any]) -> tuple[Any, ...]:
    held = " with reservations" if one["reservations"] else ""
    most = one["reason"] if one["epsilon"] is None else upper(one["epsilon"])
    least = "" if one["epsilon_lower"] is None else lower(one["epsilon_lower"])
    return (
        repr(one["delta"]), most, least, _accountant(one["accountant"]) + held, one["bound"],
        one["status"],
        [words(named).lower() for named in one["assumptions"]],
    )  # fmt: skip


def _accountant(name: str) -> str:
    return "best of these" if name == "best" else accountant_words(name)


def _standing(one: dict[str, Any]) -> tuple[Any, ...]:
    outside = [f"{words(each['kind']).lower()} of {each['branch']}"
               for each in one["outside_guarantee"]]  # fmt: skip
    return (
        one["run"], words(one["state"] or "").lower(), one["sampling_status"], outside,
        one["steps_beyond_a_limit"], one["steps_reserved_beyond_a_limit"], one["by"],
        one["appended_by"], one["corrections"], one["branches"], one["releases"],
    )  # fmt: skip


def _audit_rows(one: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    for audit in one["audits"]:
        yield (
            one["run"], audit["number"], f"{audit['correct']} of {audit['guesses']}",
            lower(audit["epsilon_at_least"]), lower(audit["level"]),
            "yes" if audit["contradicts"] else "no",
        )  # fmt: skip


def _advisory(one: dict[str, Any]) -> tuple[Any, ...]:
    version = f"{one['library']} {one['library_version'] or 'of an unknown version'}"
    return one["run"], one["id"], version, one["consequence"], one["source"]


def _restatement_rows(one: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            one["log"]["acted_at"], one["core_version"],
            repr(change["delta"]), _accountant(change["accountant"]),
            repr(change["old"]["epsilon"]), repr(change["new"]["epsilon"]),
        )
        for change in one["changes"]
    ]  # fmt: skip


def _incidents(facts: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    for home in facts["homes"]:
        for run in home["runs"]:
            for one in run["incidents"]:
                yield (
                    run["ledger"]["run"], words(one["kind"]), one["count"], one["first_sequence"],
                    one["last_sequence"],
                )  # fmt: skip


def _limit(one: dict[str, Any]) -> tuple[Any, ...]:
    return (
        one["revision"], _words(one["epsilon"]), _words(one["delta"]), one["accept"],
        one["reason"], one["changed_at"], one.get("changed_by"), one.get("requested_by"),
    )  # fmt: skip


def _approved_changes(facts: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    for home in facts["homes"]:
        for run in home["runs"]:
            for one in run.get("approved_changes", ()):
                yield (
                    run["ledger"]["run"], words(one["kind"]), one["reservation"], one["branch"],
                    one["first_step"], one["steps"], one["reason"], one["approved_at"],
                    one["approved_by"], one["requested_by"],
                )  # fmt: skip


def _theorem(one: dict[str, Any]) -> str:
    about = f"{one['source']}. Status: {one['status']}."
    return (
        f"<h3>{escape(one['id'])}</h3><p>{escape(about)}</p><pre>{escape(one['statement'])}</pre>"
    )


def _how(raw: bytes, envelope: dict[str, Any]) -> str:
    digest, name = hashlib.sha256(raw).hexdigest(), "certificate.json"
    data = base64.b64encode(raw).decode()
    return (
        "<p>This page is a view; what is signed is its "
        f'<a download="{name}" href="data:application/json;base64,{data}">certificate file</a>, '
        f"SHA-256 <code>{digest}</code>, by key <code>{escape(envelope['key_id'])}</code> "
        f"(<code>{escape(envelope['public_key'])}</code>). Offline, with the key as you know it "
        f"from elsewhere:</p><pre>dpledger verify {name} --public-key KEY</pre>"
    )
