// Charge a step with a client that was generated from the OpenAPI document, and print what it was told.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const [baseUrl, key] = [process.env["DPLEDGER_URL"], process.env["DPLEDGER_API_KEY"]];
if (baseUrl === undefined || key === undefined) throw new Error("DPLEDGER_URL, DPLEDGER_API_KEY");
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

function answered<T>(given: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (given.data === undefined) throw new Error(given.error?.detail ?? "no answer");
  return given.data;
}

answered(
  await client.POST("/v1/datasets", {
    body: {
      name: "letters",
      dataset_size: 60000,
      neighboring_relation: "add_or_remove_one",
      privacy_unit: "one letter",
      budget: { epsilon: 3, delta: 1e-5, filter: "fixed_order_renyi" },
      parents: [],
    },
  }),
);
answered(
  await client.POST("/v1/runs", {
    body: {
      name: "typed",
      writer: "0123456789abcdef",
      dataset: "letters",
      delta: 1e-5,
      release: "every_step",
      assumptions: {},
      labels: {},
    },
  }),
);
const step = (first_step: number): components["schemas"]["EventMessage"] => ({
  first_step,
  steps: 1,
  mechanism: { kind: "gaussian", noise_multiplier: 1.1 },
  sampling: { kind: "poisson", sampling_probability: 0.004 },
});
const path = { run: "typed" };
const charged = answered(
  await client.POST("/v1/runs/{run}/events", {
    params: { path },
    body: { branch: "main", mode: "charge", events: [step(0)] },
  }),
);
const gap = await client.POST("/v1/runs/{run}/events", {
  params: { path },
  body: { branch: "main", mode: "charge", events: [step(5)] },
});
const guarantee = answered(await client.GET("/v1/runs/{run}/guarantee", { params: { path } }));
console.log(
  JSON.stringify({
    accepted: charged.accepted,
    verdict: charged.verdict,
    expected_step: gap.error?.expected_step,
    epsilon: guarantee.epsilon,
    status: guarantee.status,
  }),
);
