# Charge a step with a client that was generated from the OpenAPI document, and print the answers.
#
#     Rscript charge_step.R dpledger.R
source(commandArgs(trailingOnly = TRUE)[[1]])

client <- dpledger_client()
step <- function(first_step) {
  list(
    first_step = first_step,
    steps = 1,
    mechanism = list(kind = "gaussian", noise_multiplier = 1.1),
    sampling = list(kind = "poisson", sampling_probability = 0.004)
  )
}

dataset <- create_dataset(client, list(
  name = "digits",
  dataset_size = 60000,
  neighboring_relation = "add_or_remove_one",
  privacy_unit = "one digit",
  budget = list(epsilon = 3, delta = 1e-5)
))
run <- create_run(client, list(name = "r", writer = "0123456789abcdef", dataset = "digits", delta = 1e-5))
charged <- append_events(client, "r", list(mode = "charge", events = list(step(0))))
gap <- tryCatch(
  append_events(client, "r", list(mode = "charge", events = list(step(5)))),
  dpledger_problem = function(refusal) refusal$problem
)
guarantee <- get_run_guarantee(client, "r") # epsilon is NULL where no bound is finite
cat(dpledger_json(list(
  accepted = charged$accepted,
  verdict = charged$verdict,
  expected_step = gap$expected_step,
  epsilon = guarantee$epsilon,
  status = guarantee$status
)), "\n")
