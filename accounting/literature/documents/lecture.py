"""Document 003: Brown's lecture notes on privacy amplification."""

from typing import Final

from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "003-T1.1",
        "a uniform subset of m of n: epsilon' = log(1 + (m/n)(e^epsilon - 1)), delta' = m delta/n",
        Verdict.PROVEN,
        ("sampled-dp", "sampled-profile", "poisson-amplification"),
    ),
    Row(
        "003-RR",
        "randomized response in three parametrisations; RR' is log(1 + epsilon)-DP",
        Verdict.DEFINITION,
        ("randomized-response-renyi", "sampled-response"),
    ),
    Row(
        "003-RRsub",
        "subsampled randomized response is exactly RR'' at epsilon p",
        Verdict.WRONG,
        ("subsampled-response-as-printed", "sampled-response"),
    ),
    Row(
        "003-dup",
        "a record is protected, not the person behind several of them",
        Verdict.DEFINITION,
        ("group-privacy", "service/schemas/requests.py"),
    ),
    Row(
        "003-LDP",
        "errors of a mean: central 1/(n epsilon), local 1/(epsilon sqrt n); data must be bounded",
        Verdict.PROVEN,
        ("central-mean-error", "local-mean-error", "central-mean-of-unbounded-data"),
    ),
    Row(
        "003-T2.1",
        "shuffled messages: O(epsilon sqrt(log(1/delta)/n)) for epsilon <= 1",
        Verdict.PROVEN,
        (
            "shuffling-clones",
            "clones-general",
            "clones-class",
            "shuffled-response",
            "clones-stronger-general",
        ),
    ),
    Row(
        "003-A1",
        "one pass of DP-SGD in a fixed order, the last iterate shown",
        Verdict.DEFINITION,
        ("accounting/hidden_state_runs.py",),
    ),
    Row(
        "003-early",
        "records that come early are protected better",
        Verdict.PROVEN,
        ("pnsgd-record", "shift-mu-single-use"),
    ),
    Row(
        "003-T3.1",
        "on a bounded domain the loss of the last iterate stops growing with the steps",
        Verdict.PROVEN,
        ("shift-mu-bounded-domain", "sampled-last-iterate"),
    ),
)
