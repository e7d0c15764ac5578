// Charge a step with a client that was generated from the OpenAPI document, and print the answers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"dpledger"
)

func must[T any](answer T, _ any, err error) T {
	var refused *dpledger.GenericOpenAPIError
	if errors.As(err, &refused) {
		log.Fatal(string(refused.Body()))
	}
	if err != nil {
		log.Fatal(err)
	}
	return answer
}

func step(first int64) dpledger.EventMessage {
	noise := dpledger.GaussianMechanism{Kind: "gaussian", NoiseMultiplier: 1.1}
	rate := dpledger.PoissonSampling{Kind: "poisson"}
	rate.SetSamplingProbability(0.004)
	return dpledger.EventMessage{
		FirstStep: first,
		Steps:     1,
		Mechanism: dpledger.GaussianMechanismAsCorrectedStepsMechanism(&noise),
		Sampling:  dpledger.PoissonSamplingAsCorrectedStepsSampling(&rate),
	}
}

func main() {
	configuration := dpledger.NewConfiguration()
	configuration.Servers[0].URL = os.Getenv("DPLEDGER_URL")
	client := dpledger.NewAPIClient(configuration)
	ctx := context.WithValue(
		context.Background(), dpledger.ContextAccessToken, os.Getenv("DPLEDGER_API_KEY"),
	)

	dataset := dpledger.NewDataset{
		Name:                "digits",
		DatasetSize:         60000,
		NeighboringRelation: "add_or_remove_one",
		PrivacyUnit:         "one digit",
	}
	dataset.SetBudget(dpledger.Budget{Epsilon: 3, Delta: 1e-5})
	must(client.DatasetsAPI.CreateDataset(ctx).NewDataset(dataset).Execute())
	run := dpledger.NewRun{Name: "go", Writer: "0123456789abcdef", Dataset: "digits"}
	run.SetDelta(1e-5)
	must(client.RunsAPI.CreateRun(ctx).NewRun(run).Execute())

	batch := func(first int64) dpledger.EventBatch {
		made := dpledger.EventBatch{Events: []dpledger.EventMessage{step(first)}}
		made.SetMode("charge") // refused before the step, if it does not fit
		return made
	}
	charged := must(client.EventsAPI.AppendEvents(ctx, "go").EventBatch(batch(0)).Execute())
	_, _, err := client.EventsAPI.AppendEvents(ctx, "go").EventBatch(batch(5)).Execute()
	var refused *dpledger.GenericOpenAPIError
	if !errors.As(err, &refused) {
		log.Fatal("steps were missing, and the service took those behind them")
	}
	problem := refused.Model().(dpledger.Problem)

	guarantee := must(client.RunsAPI.GetRunGuarantee(ctx, "go").Execute())
	epsilon, bounded := guarantee.GetEpsilonOk() // GetEpsilon() is 0 where no bound is finite
	if !bounded || epsilon == nil {
		log.Fatal("no accepted bound is finite")
	}
	told, err := json.Marshal(map[string]any{
		"accepted":      charged.GetAccepted(),
		"verdict":       charged.GetVerdict(),
		"expected_step": problem.GetExpectedStep(),
		"epsilon":       *epsilon,
		"status":        guarantee.GetStatus(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(told))
}
