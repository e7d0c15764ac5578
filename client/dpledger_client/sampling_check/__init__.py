"""Test the declared sampling by the sizes of the batches alone.

It runs in the trainer's process. The probability of any false alarm is at most `level`, with any
number of tests. The number of records in a batch is private, and so is everything computed from it:
this module never sends, logs or stores a size, an e-value or a verdict, and other code should not
either.
"""

from dpledger_client.sampling_check.e_process import Evidence, log_e_values, observe, start, verdict

__all__ = ["Evidence", "log_e_values", "observe", "start", "verdict"]
