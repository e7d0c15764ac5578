"""Refusal of values that no event has."""


def require_range(condition: bool, /, **values: object) -> None:
    """Raise a ValueError that names the values, unless the condition holds."""
    if not condition:
        names = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(f"Out of range: {names}.")
