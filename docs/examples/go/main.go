// Schedules a message, takes and acks it, and cancels another one, by a client that is generated:
//
//	curl -s http://localhost:2108/openapi.json -o openapi.json
//	go tool oapi-codegen -config oapi-codegen.yaml openapi.json
//	go run . http://localhost:2108
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"example.com/sandq-example/sandq"
)

const (
	topic = "reminders"
	group = "mailer"
)

// What every answer has.
type answer interface {
	StatusCode() int
	GetBody() []byte
}

// must returns an answer that is no problem.
func must[T answer](got T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	if got.StatusCode() >= 400 {
		log.Fatalf("%s", got.GetBody())
	}
	return got
}

// schedule produces one message, and tells its id.
func schedule(ctx context.Context, client *sandq.ClientWithResponses, to string, delay sandq.Duration) string {
	var body sandq.ProduceJSONRequestBody
	if err := body.FromMessageIn(sandq.MessageIn{Json: map[string]string{"to": to}, Delay: &delay}); err != nil {
		log.Fatal(err)
	}
	stored, err := must(client.ProduceWithResponse(ctx, topic, body)).JSON201.AsStored()
	if err != nil {
		log.Fatal(err)
	}
	return stored.Id
}

// login says who asks, where that is known.
func login(_ context.Context, request *http.Request) error {
	if token := os.Getenv("SANDQ_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

func main() {
	ctx := context.Background()
	server := "http://localhost:2108"
	if len(os.Args) > 1 {
		server = os.Args[1]
	}
	client, err := sandq.NewClientWithResponses(server, sandq.WithRequestEditorFn(login))
	if err != nil {
		log.Fatal(err)
	}
	created, err := client.CreateTopicWithResponse(ctx, sandq.TopicCreate{Name: topic})
	if err != nil {
		log.Fatal(err)
	}
	if problem := created.ApplicationproblemJSON4XX; problem == nil || problem.Code != "TOPIC_EXISTS" {
		must(created, nil)
	}
	// A group has what comes after it: it is there before the first message.
	must(client.LeaseMessagesWithResponse(ctx, topic, group, sandq.LeaseIn{}))

	soon := schedule(ctx, client, "ada@example.org", "1s")
	never := schedule(ctx, client, "bob@example.org", "1h")
	fmt.Println("scheduled 2 messages")
	must(client.CancelMessageWithResponse(ctx, topic, never, nil))
	fmt.Println("cancelled the one to bob@example.org")

	wait, lease := "30s", "1m"
	leased := must(client.LeaseMessagesWithResponse(ctx, topic, group, sandq.LeaseIn{Wait: &wait, Lease: &lease}))
	for _, message := range leased.JSON200.Messages {
		due, err := time.Parse(time.RFC3339, message.DeliverAt)
		if err != nil || message.Id != soon || time.Now().Before(due) {
			log.Fatalf("%s came, or came early", message.Id)
		}
		value, err := json.Marshal(message.Json)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("took %s, attempt %d\n", value, message.Attempt)
		held := sandq.AckThenIn{LeaseToken: &message.LeaseToken, Offset: &message.Offset}
		acked := must(client.AckMessagesWithResponse(ctx, topic, group, held))
		fmt.Printf("acked %d\n", acked.JSON200.Settled)
	}
}
