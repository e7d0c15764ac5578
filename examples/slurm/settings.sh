# Where the ledger is, and the file with a trainer's key, which only SlurmUser may read.
DPLEDGER_URL=https://ledger.example
DPLEDGER_API_KEY_FILE=/etc/slurm/dpledger/api_key
DPLEDGER_PARTITIONS="private"
