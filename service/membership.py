"""What a run's curve says in plain words of whoever tries to find out who was in the data."""

from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

from sqlalchemy import Connection

from service import profiles
from service.answers import Answer
from service.profiles import Curve

POINTS: Final = 200  # as many as the API tells at most: a chart has no corner between them
TOLD: Final = (1e-3, 1e-2, 1e-1)  # rates of false alarms that are put in words
_UP: Final = Context(prec=3, rounding=ROUND_CEILING)
_EVERYBODY: Final = 0.9995  # above, three digits up are all of them


class Sentence(Answer):
    """The most that is found at a rate of false alarms, in words."""

    false_positive_rate: float
    true_positive_rate: float  # upper
    text: str


class Membership(Answer):
    """A run's curve, and what it says of an attacker."""

    curve: Curve
    sentences: list[Sentence]
    advantage: str  # in words


def membership(connection: Connection, run_name: str) -> Membership:
    """What a run's privacy profile says.

    Raises:
        NotFoundError: there is no such run.
    """
    return membership_of(profiles.curve(connection, run_name, points=POINTS))


def membership_of(curve: Curve) -> Membership:
    """A curve with its meaning."""
    sentences = [
        Sentence(
            false_positive_rate=one.false_positive_rate,
            true_positive_rate=one.true_positive_rate,
            text=_sentence(one.false_positive_rate, one.true_positive_rate),
        )
        for one in curve.true_positive_rates
        if one.false_positive_rate in TOLD
    ]
    return Membership(curve=curve, sentences=sentences, advantage=_advantage(curve))


def percent_up(share: float) -> str:
    """A share in percent with three digits, never less than it is."""
    return f"{_trimmed(_UP.multiply(Decimal(share), Decimal(100)))} %"


def _trimmed(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _sentence(wrong: float, found: float) -> str:
    rate = _trimmed(Decimal(repr(wrong)) * 100)
    said = f"An attacker who is wrong {rate} % of the time on non-members finds"
    if found >= _EVERYBODY:
        return f"{said} possibly every member: nothing less is proved."
    return f"{said} at most {percent_up(found)} of members."


def _advantage(curve: Curve) -> str:
    if not curve.profile:
        return "Nothing is proved: an attacker might tell members from non-members every time."
    if not curve.steps:
        return "Nothing was recorded, so there is nothing to learn from."
    return (
        "Whatever the attacker does, the share of members found exceeds the share of false alarms "
        f"by at most {percent_up(curve.membership_advantage)[:-2]} percentage points."
    )
