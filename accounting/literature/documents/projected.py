"""Document 001: Sordello, Bu, Dong and Su 2021, shuffled and online PNSGD."""

from typing import Final

from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "001-E\u03b3",
        "the divergence E_gamma; a kernel contracts it by what it leaves of two points",
        Verdict.PROVEN,
        ("accounting/literature/contraction/kernels.py", "gaussian-profile", "pnsgd-record"),
    ),
    Row(
        "001-PNSGD",
        "projected noisy SGD: w <- Proj_K(w - eta (gradient + noise))",
        Verdict.DEFINITION,
        ("accounting/literature/contraction/contraction.py",),
    ),
    Row(
        "001-T1G",
        "Gaussian noise: delta of record i is A B^(n-i); needs eta <= 2/(beta + rho)",
        Verdict.PROVEN,
        ("pnsgd-record", "contraction-without-step-condition"),
    ),
    Row(
        "001-T1L",
        "Laplace noise in one dimension: delta of record i is A B^(n-i)",
        Verdict.PROVEN,
        ("pnsgd-record",),
    ),
    Row(
        "001-RS",
        "a secret uniform stop: A/(n (1-B)), and with 1 - B^(n-i+1) for record i",
        Verdict.PROVEN,
        ("pnsgd-random-stop", "pnsgd-random-stop-coarse"),
    ),
    Row(
        "001-T2",
        "a secret uniform order: delta is A (1 - B^n)/(n (1-B))",
        Verdict.PROVEN,
        ("pnsgd-shuffled",),
    ),
    Row(
        "001-cmp",
        "shuffling is strictly better than a random stop",
        Verdict.WRONG,
        ("shuffled-below-random-stop", "pnsgd-random-stop", "pnsgd-shuffled"),
    ),
    Row(
        "001-R3",
        "several epochs compose: from the whole profile, not from one (epsilon, delta)",
        Verdict.PROVEN,
        ("pnsgd-pass", "pnsgd-one-order", "profile-to-renyi", "single-point-gdp"),
    ),
    Row(
        "001-T4",
        "Laplace noise falling with n: delta* + O(1/n) if kappa >= 1, n^-kappa below",
        Verdict.PROVEN,
        ("pnsgd-shuffled-scheduled", "laplace-schedule-rate"),
    ),
    Row(
        "001-L8",
        "expansion of E_gamma for little noise",
        Verdict.PROVEN,
        ("accounting/literature/contraction/kernels.py",),
    ),
    Row(
        "001-T5",
        "Gaussian noise falling with n through Lambert's W: delta* + O(1/log n)",
        Verdict.PROVEN,
        ("pnsgd-shuffled-scheduled",),
    ),
    Row(
        "001-T6",
        "online, Laplace: the limit for one record is at most its delta*; no bound before it",
        Verdict.PROVEN,
        ("pnsgd-online", "online-limit-as-bound"),
    ),
    Row(
        "001-T7",
        "online, Gaussian: the limit for one record is at most its delta*; no bound before it",
        Verdict.PROVEN,
        ("pnsgd-online",),
    ),
    Row(
        "001-rate",
        "the online delta meets its limit like 1/log n",
        Verdict.WRONG,
        ("online-rate-as-printed", "pnsgd-online"),
    ),
    Row(
        "001-F1",
        "Figure 1: the Laplace schedule against its limit, and the online one",
        Verdict.EXPERIMENT,
        ("service/cli/figures",),
    ),
    Row(
        "001-F2",
        "Figure 2: the Gaussian schedule against its limit, and the online one",
        Verdict.EXPERIMENT,
        ("service/cli/figures",),
    ),
    Row(
        "001-F3",
        "Figure 3: the Gaussian schedule at learning rates 0.02 and 0.01",
        Verdict.EXPERIMENT,
        ("service/cli/figures",),
    ),
    Row(
        "001-F4",
        "Figure 4: rates of convergence online",
        Verdict.EXPERIMENT,
        ("service/cli/figures", "online-rate-as-printed"),
    ),
    Row(
        "001-G",
        "Appendix G: the parameters of all figures",
        Verdict.DEFINITION,
        ("service/cli/figures",),
    ),
)
