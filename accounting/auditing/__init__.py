"""Audits: what an attack on a training says of its epsilon from below."""

from accounting.auditing.one_run import THEOREMS as THEOREMS
