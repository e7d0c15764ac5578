"""Is the sampling really what was declared? A test by the sizes of the batches alone.

It runs in the trainer's process and gives no false alarm but with the chance that `level` allows,
however often it is asked. How many records a batch has is private, and so is everything computed
from it: nothing in here sends, logs or stores a size, an e-value or a verdict, and nobody else
should.
"""

from dpledger_client.sampling_check.e_process import Evidence, log_e_values, observe, start, verdict

__all__ = ["Evidence", "log_e_values", "observe", "start", "verdict"]
