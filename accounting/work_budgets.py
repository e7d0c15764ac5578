"""How much work each part of an answer may take, in points.

A point is one evaluation of a function on one number, as work_limit counts it. The budgets were
chosen so that a guarantee with all that stands beside it takes about two seconds of one processor.
A smaller budget makes an answer coarser, never wrong. Of an answer with several parts each may take
a share of these.
"""

from typing import Final

MILLION: Final = 1_000_000

# An accountant's answer about all steps together; Renyi curves of as many events take less.
ACCOUNTANT: Final = {
    "gdp": 40 * MILLION, "pld": 145 * MILLION, "rdp": 30 * MILLION, "odometer": 100 * MILLION,
}  # fmt: skip
PLD_OF_GROUPED_EVENTS: Final = 176 * MILLION  # it goes on with fewer events by itself
FEW_EVENTS: Final = 12  # at most so many may take more: none of them is replaced by another
ACCOUNTANT_OF_FEW_EVENTS: Final = {1: 185 * MILLION, FEW_EVENTS: 120 * MILLION}
RENYI_CURVES_OF_FEW_EVENTS: Final = 70 * MILLION
# Where that is not enough: how many noises of one sampling are left, and what they may take.
FEWER_NOISES: Final = ((8, 30 * MILLION), (1, 20 * MILLION))
FEWER_NOISES_ODOMETER: Final = ((16, 100 * MILLION), *FEWER_NOISES)  # it costs more a noise

# Events that are grouped to dominate a ledger; one group is always paid for.
GROUPED_EVENTS: Final = 100 * MILLION
ONE_GROUP: Final = 60 * MILLION

# Kinds of steps one by one, and with what they took together if that was little.
KINDS_APART: Final = 90 * MILLION
KINDS_TOGETHER: Final = 350 * MILLION

# The deltas of a trial that a Poisson number of trials is bounded with; beyond, the Renyi curve's.
SELECTION_DELTAS: Final = 30 * MILLION

LOWER_BOUND: Final = 135 * MILLION  # pairs that events attain
LOWER_END: Final = 40 * MILLION  # of a guarantee, in any case
LOWER_END_OF_ONE_EVENT: Final = 100 * MILLION  # which cannot be grouped
ROUGH_LOWER_END: Final = 25 * MILLION  # of very many events

GUARANTEE: Final = 190 * MILLION  # with all that stands beside the headline
BESIDE: Final = 15 * MILLION  # each number beside a headline
BESIDE_OF_FEW_EVENTS: Final = 30 * MILLION
# Where the headline is far above the lower end: bounds of every status, and those in any case.
WIDE_GUARANTEE: Final = 400 * MILLION
EVERY_STATUS: Final = 60 * MILLION

TRIALS_APART: Final = 60 * MILLION  # the trials of selections one by one, beside a plan

LATTICE_OF_RARE_LOSSES: Final = 90 * MILLION  # it serves where many steps show something
RENYI_CURVE_OF_PROFILE: Final = 40 * MILLION  # where nothing better is reached
