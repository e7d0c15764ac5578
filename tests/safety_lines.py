"""Delete each safety line once, in a copy of the tree, and see that its test fails.

    python -m tests.safety_lines [WORD]    # or: make safety-lines

With WORD, only the lines whose place, text or test has it. Three kinds of lines are deleted: those
of LINES, each in the way that stands there; each table of INSERT_ONLY in the migration, so that it
has no trigger; and each comparison of the form `not a <= b` in a file of COMPARISONS, which becomes
`a > b`: the same for numbers, but NaN gets past it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.safety_lines_of_people import PEOPLE, Line

ROOT: Final = Path(__file__).resolve().parents[1]
MIGRATION: Final = "migrations/versions/2026_11_29_first_schema.py"
NOTES: Final = "migrations/versions/2026_12_11_incident_notes.py"
REQUESTS_MIGRATION: Final = "migrations/versions/2026_12_10_change_requests.py"
LOCKS: Final = "test_locks.py::test_a_row_is_read_only_when_it_is_locked"
INSERT: Final = "test_insert_only.py::"
NAN: Final = "test_not_a_budget.py::"
VERIFY: Final = "test_verification.py"
FITS: Final = "test_fits_as_charged.py"


# fmt: off
LINES: Final = (
    # Locks. On PostgreSQL, rows; on SQLite, the file.
    Line("service/identity/keys.py", ".with_for_update()", "", LOCKS),
    Line("service/transparency/ledger_identity.py", ".with_for_update()", "", LOCKS),
    Line("service/transparency/recovery.py", "(installation).with_for_update()", "(installation)",
         LOCKS),
    Line("service/transparency/recovery.py", "query.with_for_update()", "query", LOCKS),
    Line("service/ledger/log/leaves.py", ".with_for_update()", "", LOCKS),
    Line("service/ledger/log/leaves.py", ".with_for_update()", "", LOCKS, 1),
    Line("service/ledger/lookups.py", ".with_for_update()", "", LOCKS),
    Line("service/ledger/lookups.py", "_DATASET_NAMED.with_for_update()", "_DATASET_NAMED", LOCKS),
    Line("service/storage/bulk.py", " FOR UPDATE", "", LOCKS),
    Line("service/storage/engine.py", '"BEGIN IMMEDIATE"', '"BEGIN"',
         "test_locks.py::test_a_transaction_that_may_write_has_the_file_before_it_reads"),
    Line("service/storage/engine.py", "; SELECT pg_advisory_xact_lock_shared({_WHOLE})", "",
         "test_taking.py::test_whoever_suspends_waits_for_those_who_write"),
    Line("service/ledger/append/write_access.py", "    hold(connection)\n", "",
         "test_taking.py::test_whoever_suspends_waits_for_those_who_write"),
    Line("service/transparency/recovery.py", "    hold(connection, alone=True)\n", "",
         "test_taking.py::test_whoever_suspends_waits_for_those_who_write"),
    # No request is told before the commit, and a connection is closed where a client expects it.
    Line("service/ledger/append/writer.py", "_in_loops(_prepare, group, outcomes)",
         "_in_loops(_prepare, group, outcomes), _tell(group, outcomes)",
         "test_writer.py::test_when_the_commit_fails_nobody_is_told_that_it_worked"),
    Line("service/web/server.py", " or not cycle.keep_alive", "",
         "test_answers_taken.py::test_an_append_is_answered_in_one_write_and_as_in_two"),
    # Keys that are unique.
    *(
        Line("service/operations/diagnostics/unique_keys.py", text, "",
             "test_unique_keys.py::test_a_key_that_is_no_longer_unique_is_named")
        for text in ("AND i.indisvalid ", "i.indpred IS NULL AND ", " AND i.indexprs IS NULL",
                     " AND NOT i.partial", ' AND i.\\"unique\\"')
    ),
    Line("service/operations/diagnostics/unique_keys.py", "for name in parts if divided else",
         "for name in", "test_partitions.py::test_a_part_that_lost_what_protects_it_is_found"),
    # Parts of the entries on PostgreSQL.
    Line("service/storage/partitions.py",
         '    run("LOCK TABLE entries IN ACCESS EXCLUSIVE MODE")\n', "",
         "test_partitions.py::test_an_entry_that_is_committed_meanwhile_is_not_lost"),
    Line("service/storage/partitions.py", "SELECT EXISTS (SELECT 1 FROM entries)", "SELECT false",
         "test_partitions.py::test_a_ledger_with_entries_is_not_divided"),
    Line("service/storage/partitions.py", "run(f\"REVOKE ALL ON {name} FROM {one.role}\")", "pass",
         "test_partitions.py::test_roles_may_do_what_they_might_and_no_more"),
    Line("service/storage/partitions.py",
         '("entries", *names):\n        connection', '("entries",):\n        connection',
         "test_partitions.py::test_each_part_refuses_what_the_table_did"),
    Line("service/storage/partitions.py", "CREATE UNIQUE INDEX ON", "CREATE INDEX ON",
         "test_partitions.py::test_each_part_refuses_what_the_table_did"),
    Line("service/storage/partitions.py", "    connection.exec_driver_sql(_REFUSE_NO_LEAF)\n", "",
         "test_partitions.py::test_each_part_refuses_what_the_table_did"),
    # Messages.
    Line("service/schemas/message.py", '        extra="forbid",\n', "", "test_schemas.py"),
    Line("service/schemas/message.py", "        strict=True,\n", "", "test_schemas.py"),
    Line("service/schemas/message.py", "        allow_inf_nan=False,\n", "", "test_schemas.py"),
    Line("service/web/parameters.py", 'extra="forbid", ', "",
         "test_one_meaning.py::test_the_name_of_an_unknown_parameter_is_not_repeated"),
    Line("service/web/api/append_events.py", "    _require_finite(answer.values())\n", "",
         "test_reply.py::test_a_number_that_is_not_finite_is_never_written_as_null"),
    # Numbers and sets that must be within others: what is not comparable is not within.
    Line("service/ledger/runs.py", "not certificate.epsilon <= new.budget.epsilon",
         "certificate.epsilon > new.budget.epsilon", NAN + "test_a_plan_of_nan_is_refused"),
    Line("service/ledger/fixed_plans.py", "if not epsilon <= limit", "if epsilon > limit",
         NAN + "test_a_plan_of_nan_is_certified_for_no_delta"),
    Line("service/ledger/budgets/envelopes.py", "if not found.epsilon <= budget.epsilon",
         "if found.epsilon > budget.epsilon", NAN + "test_an_envelope_of_nan_is_refused"),
    Line("service/guarantees/guarantee.py", "not 0 < delta < 1", "delta <= 0 or delta >= 1",
         NAN + "test_no_epsilon_is_stated_at_a_delta_of_nan"),
    Line("accounting/calibration.py", "if not reached <= target", "if reached > target",
         NAN + "test_nan_never_reaches_a_target"),
    Line("accounting/accountants/best_bound.py", "not accept <= ACCEPTABLE",
         "accept > ACCEPTABLE", "accounting/test_quarantine.py"),
    Line("accounting/renyi/moments.py", "np.max(size) < _EXPONENT_MAX", "np.max(size) < math.inf",
         "accounting/test_safety_terms.py::"
         "test_exponents_beyond_doubles_are_taken_as_logarithms"),
    # What fits: the filter behind a plan holds all steps, and an envelope those it was made for.
    Line("service/ledger/budgets/budget.py", "self.planned is None and ", "", FITS),
    Line("service/ledger/budgets/planned_envelopes.py", "if not held_by.admits(",
         "if 0 and (", FITS),
    Line("service/ledger/append/branch_end.py",
         "NO_SHIFTS if self.run is None else self.run.shifts", "NO_SHIFTS", FITS),
    # Reserved steps count as often as shifted passes do once they are recorded.
    Line("service/ledger/reservations.py", "return with_shifts(move, run.shifts)", "return move",
         "test_reserved_shifts.py"),
    Line("service/ledger/budgets/accumulator.py", "merge_changes([held, besides, ahead])",
         "merge_changes([held, besides])", "test_reserved_shifts.py"),
    Line("service/ledger/append/shifted_passes.py",
         "shifted_ahead=merge_changes(one.shifted_ahead for one in moves)",
         "shifted_ahead={}", "test_reserved_shifts.py"),
    Line("accounting/renyi/moments.py", "found[:, inside] = np.where(near", "np.where(near",
         "accounting/test_safety_terms.py"),
    # What a bound is of, and what is told of it.
    Line("accounting/accountants/unit_bound.py", "isinstance(_batch_sampling(event), Full",
         "isinstance(event.sampling, Full", "accounting/test_units.py"),
    Line("service/ledger/branches.py", "            _raise_alerts(connection, run.name, shares)\n",
         "            pass\n", "test_overdrafts_told.py"),
    Line("service/transparency/certificates/html.py",
         'if one["sampling_status"] == "contradicted":', "if False:", "test_certificate_page.py"),
    Line("service/transparency/certificates/html.py",
         'if any(audit["contradicts"] for audit in one["audits"]):', "if False:",
         "test_certificate_page.py"),
    # Triggers and constraints.
    Line(MIGRATION, 'for verb in ("UPDATE", "DELETE")', 'for verb in ("DELETE",)', INSERT
         + "test_no_fact_is_ever_changed"),
    Line(MIGRATION, 'for verb in ("UPDATE", "DELETE")', 'for verb in ("UPDATE",)', INSERT
         + "test_no_fact_is_ever_deleted"),
    Line(MIGRATION, "BEFORE UPDATE OR DELETE OR TRUNCATE", "BEFORE DELETE OR TRUNCATE", INSERT
         + "test_no_fact_is_ever_changed"),
    Line(MIGRATION, "BEFORE UPDATE OR DELETE OR TRUNCATE", "BEFORE UPDATE OR TRUNCATE", INSERT
         + "test_no_fact_is_ever_deleted"),
    Line(MIGRATION, "BEFORE UPDATE OR DELETE OR TRUNCATE", "BEFORE UPDATE OR DELETE", INSERT
         + "test_no_table_of_facts_is_emptied_at_once"),
    Line(NOTES, 'for verb in ("UPDATE", "DELETE")', 'for verb in ("DELETE",)', INSERT
         + "test_no_fact_is_ever_changed"),
    Line(NOTES, "BEFORE UPDATE OR DELETE OR TRUNCATE", "BEFORE TRUNCATE", INSERT
         + "test_no_fact_is_ever_deleted"),
    Line(MIGRATION, "WHEN NEW.leaf IS NULL ", "WHEN 0 ", INSERT
         + "test_an_entry_without_a_leaf_is_refused"),
    Line(MIGRATION, "WHEN (NEW.leaf IS NULL) ", "WHEN (false) ", INSERT
         + "test_an_entry_without_a_leaf_is_refused"),
    Line(MIGRATION, '    sa.CheckConstraint("steps > 0", name="steps_positive"),\n', "", INSERT
         + "test_an_entry_counts_steps_and_no_step_of_a_branch_begins_two"),
    Line("service/storage/sqlite.py", ', "recursive_triggers=ON"', "", INSERT
         + "test_no_fact_is_ever_replaced"),
    Line(REQUESTS_MIGRATION, '("change_requests", "change_decisions")', '("change_decisions",)',
         INSERT + "test_no_fact_is_ever_deleted"),
    Line(REQUESTS_MIGRATION, '("change_requests", "change_decisions")', '("change_requests",)',
         INSERT + "test_no_fact_is_ever_deleted"),
    *PEOPLE,
    # The log.
    Line("service/transparency/verification/log.py", "found != leaf or ", "", VERIFY),
    Line("service/transparency/verification/log.py", 'leaf != act["leaf"]', "False", VERIFY),
    Line("service/transparency/verification/log.py", "found != known", "False",
         "test_verify_command.py::test_the_first_broken_entry_is_named"),
    Line("service/transparency/verification/log.py", "self.tree.frontier().root() != head.root",
         "False", VERIFY),
    Line("service/transparency/verification/log.py", "first != state.next_step or ", "", VERIFY),
)
# fmt: on
TABLES: Final = (
    "entries",
    "settings_changes",
    "corrections",
    "incidents",
    "releases",
    "findings",
    "acts",
    "log_tiles",
)  # fmt: skip
# Files in which each comparison of the form `not a <= b` is turned around; OF_BOUNDS finds them.
OF_BOUNDS: Final = "test_not_a_number.py"
COMPARISONS: Final = (
    "accounting/binomial.py",
    "accounting/composition.py",
    "accounting/filters/integer_totals.py",
    "accounting/filters/theorems.py",
    "accounting/gaussian.py",
    "accounting/last_iterate/closed_forms.py",
    "accounting/last_iterate/declared.py",
    "accounting/last_iterate/lipschitz.py",
    "accounting/last_iterate/random_order.py",
    "accounting/last_iterate/sampled.py",
    "accounting/last_iterate/shift.py",
    "accounting/renyi/conversion.py",
    "accounting/renyi/orders.py",
    "accounting/shuffling/allocation.py",
    "accounting/shuffling/clones.py",
    "accounting/shuffling/full.py",
)
# Comparisons that no NaN passes when they are turned around, by file, each with why.
WHOLE: Final = "of whole or rational numbers, which have no NaN"
LOOKED: Final = "what it is computed of was looked at before"
BESIDE: Final = "a comparison beside it refuses the same NaN"
SEARCH: Final = "the search that follows refuses it, or ends at the safe side"
STOPPED: Final[dict[str, dict[str, str]]] = {
    "accounting/gaussian.py": {
        "not MU_MIN < low < MU_MAX": SEARCH,
        "not log_delta - error >= log_target": LOOKED,
        "not (0 < delta < 1 and mu >= 0)": SEARCH,
        "not (0 <= epsilon < math.inf and 0 < delta < 1)": SEARCH,
    },
    "accounting/last_iterate/closed_forms.py": {
        "not 0 <= sensitivity < math.inf": BESIDE,
        "not 0 < noise < math.inf": BESIDE,
        "not sensitivity / noise < math.inf": BESIDE,
        "not (moves and TINY * max(ratio, 1.0) < start < math.inf)": LOOKED,
    },
    "accounting/last_iterate/declared.py": {
        "not abs(self.loss_convexity) <= self.loss_smoothness": BESIDE,
        "not 1 <= len(starts) <= STAGES_MAX": WHOLE,
        "not 2 * self.max_grad_norm >= self.loss_convexity * span": LOOKED,
    },
    "accounting/last_iterate/lipschitz.py": {
        "not 0 < smoothness < math.inf": BESIDE,
        "not (spread > 0 and room > 0)": WHOLE,
        "not -weak <= place <= smoothness": WHOLE,
        "not (left := 1 - eta * Fraction(regularization)) > 0": WHOLE,
    },
    "accounting/last_iterate/random_order.py": {
        "not values[0] > 0": LOOKED,
        "not 1 <= len(mus) <= POSITIONS_MAX": WHOLE,
    },
    "accounting/last_iterate/shift.py": {
        "not 1 <= len(array) <= STEPS_MAX": WHOLE,
    },
    "accounting/shuffling/allocation.py": {
        "not (noise_multiplier <= NOISE_MAX and 1 <= steps <= LOWER_STEPS_MAX)": LOOKED,
        "not NOISE_MIN <= sigma <= NOISE_MAX": LOOKED,
    },
    "accounting/shuffling/clones.py": {
        "not _CROWD * share * needed <= 1 - _ROUNDING": LOOKED,
        "not high > 0": LOOKED,
    },
    "accounting/shuffling/full.py": {
        "not 1 <= steps_per_pass <= whole + (left_over > 0)": WHOLE,
    },
}
_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
}  # fmt: skip


class Deletion(NamedTuple):
    """A file without a safety line."""

    name: str  # of the line, for people
    file: str
    content: str
    test: str


def main(word: str) -> int:
    """Delete every line, print what its test did, and return the number that no test caught."""
    chosen = [one for one in deletions() if word in f"{one.name} {one.test}"]
    missed = 0
    with TemporaryDirectory(prefix="dpledger-safety-") as name:
        tree = Path(name)
        copy_tree(tree)
        for test in sorted({one.test for one in chosen}):
            code, said = run(tree, test)
            if code:
                sys.exit(f"{test} fails while every line stands:\n{said}")
        for one in chosen:
            place = tree / one.file
            before = place.read_text()
            place.write_text(one.content)
            code, said = run(tree, one.test)
            place.write_text(before)
            # Also by an error of a fixture: without a trigger the service does not start.
            caught = code == 1  # 2 and more: it could not run
            missed += not caught
            print(f"{'caught' if caught else 'NOT caught'}: {one.name}\n    by {said}", flush=True)  # noqa: T201
    print(f"{len(chosen) - missed} of {len(chosen)} deleted lines are caught")  # noqa: T201
    return missed


def copy_tree(to: Path) -> None:
    """Copy the files that git tracks or would track."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(ROOT / name, to / name)


def run(tree: Path, test: str) -> tuple[int, str]:
    """Run a test in a tree: pytest's exit code, and the name of the test that failed first."""
    folder = "tests" if (tree / "tests" / test.split("::")[0]).exists() else "tests/service"
    # The fixtures take most of the time, and this file uses none.
    words = ["--noconftest"] if test == OF_BOUNDS else []
    words += ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-o", "addopts=", *words, f"{folder}/{test}"],
        cwd=tree, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'client'}"},
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, failed[0] if failed else test


def deletions() -> Iterator[Deletion]:
    """Every file without one of its safety lines."""
    for line in LINES:
        content = (ROOT / line.file).read_text()
        parts = content.split(line.text)
        if len(parts) < 2 + line.nth:
            raise ValueError(f"{line.file} has no {line.text!r}.")
        before = line.text.join(parts[: line.nth + 1])
        after = line.text.join(parts[line.nth + 1 :])
        name = f"{line.file}: {line.text.strip()} -> {line.without.strip() or 'nothing'}"
        yield Deletion(name, line.file, before + line.without + after, line.test)
    content = (ROOT / MIGRATION).read_text()
    for table in TABLES:
        without = content.replace(f'"{table}",', "", 1)
        test = f"{INSERT}test_no_fact_is_ever_deleted"
        yield Deletion(f"{MIGRATION}: triggers of {table}", MIGRATION, without, test)
    for file in COMPARISONS:
        yield from comparisons(file)


def comparisons(file: str) -> Iterator[Deletion]:
    """A file with each of its comparisons turned around."""
    content = (ROOT / file).read_text()
    for node in ast.walk(ast.parse(content)):
        if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            continue
        turned, text = turn(node.operand), ast.get_source_segment(content, node)
        if turned is None or text is None:
            continue
        if text in STOPPED.get(file, {}):
            continue
        other = ast.unparse(turned)
        name = f"{file}:{node.lineno}: {text} -> {other}"
        yield Deletion(name, file, replaced(content, node, other), OF_BOUNDS)


def replaced(content: str, node: ast.expr, text: str) -> str:
    """A file with another expression in the place of one of its own."""
    lines = content.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = b"".join(lines[:first]) + lines[first][: node.col_offset]
    tail = lines[last][node.end_col_offset :] + b"".join(lines[last + 1 :])
    return (head + f"({text})".encode() + tail).decode()


def turn(node: ast.expr) -> ast.expr | None:
    """What is true of numbers where an expression is false; nothing where it compares no order."""
    if isinstance(node, ast.Compare) and all(type(op) in _TURNED for op in node.ops):
        sides = [node.left, *node.comparators]
        parts: list[ast.expr] = [
            ast.Compare(left=sides[i], ops=[_TURNED[type(op)]()], comparators=[sides[i + 1]])
            for i, op in enumerate(node.ops)
        ]
        return parts[0] if len(parts) == 1 else ast.BoolOp(op=ast.Or(), values=parts)
    if isinstance(node, ast.BoolOp):
        turned = [turn(value) for value in node.values]
        if not any(turned):
            return None
        other: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        values = [
            one or ast.UnaryOp(op=ast.Not(), operand=value)
            for one, value in zip(turned, node.values, strict=True)
        ]
        return ast.BoolOp(op=other, values=values)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("all", "np.all"):
        return _turn_all(node)
    return None


def _turn_all(node: ast.Call) -> ast.expr | None:
    """`all(...)` and `np.all(...)` turned to `any` of what is turned."""
    (given,) = node.args
    inner = turn(given.elt if isinstance(given, ast.GeneratorExp) else given)
    if inner is None:
        return None
    if isinstance(given, ast.GeneratorExp):
        inner = ast.GeneratorExp(elt=inner, generators=given.generators)
    name = ast.parse(ast.unparse(node.func).replace("all", "any"), mode="eval").body
    return ast.Call(func=name, args=[inner], keywords=[])


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])) > 0)
