package producer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/producer"
)

// open stands for producer.New("http://127.0.0.1:7420"): the examples have a server in memory.
func open(opts ...producer.Option) *producer.Producer {
	p, err := producer.New("", append(opts, producer.WithService(&server{only: []string{"web.access", "audit"}}))...)
	if err != nil {
		panic(err)
	}
	return p
}

func Example() {
	ctx := context.Background()
	p := open()

	// Fire and forget: never waits, and counts what it could not keep.
	p.Log("web.access", []byte("GET / 200"))

	// A batch, acknowledged when it is durable and readable.
	err := p.Write(ctx, "audit",
		producer.Message{Payload: []byte("alice logged in"), Key: []byte("alice")},
		producer.Message{Payload: []byte("alice logged out"), Key: []byte("alice")},
	)
	fmt.Println("written:", err)

	// Close sends what is buffered.
	fmt.Println("closed:", p.Close(ctx))
	st := p.Stats()
	fmt.Println(st.Acked, "of", st.Accepted, "messages acknowledged")
	// Output:
	// written: <nil>
	// closed: <nil>
	// 3 of 3 messages acknowledged
}

func ExampleProducer_WriteAsync() {
	ctx := context.Background()
	p := open(producer.WithLinger(time.Millisecond))
	defer p.Close(ctx)

	// Hand over many, then look at their results: the requests overlap.
	var pending []*producer.Result
	for i := range 1000 {
		pending = append(pending, p.WriteAsync("web.access", &producer.Message{Payload: fmt.Append(nil, i)}))
	}
	failed := 0
	for _, r := range pending {
		if err := r.Wait(ctx); err != nil {
			failed++
		}
	}
	fmt.Println(failed, "failed")
	// Output: 0 failed
}

func ExampleBatchError() {
	ctx := context.Background()
	p := open(producer.WithMaxMessageBytes(10))
	defer p.Close(ctx)

	err := p.Write(ctx, "audit",
		producer.Message{Payload: []byte("short")},
		producer.Message{Payload: []byte("much too long")},
	)
	batch := new(producer.BatchError)
	if errors.As(err, &batch) {
		for _, m := range batch.Messages {
			fmt.Println("message", m.Index, "is too large:", errors.Is(m.Err, producer.ErrTooLarge))
		}
	}
	err = p.Write(ctx, "nowhere", producer.Message{Payload: []byte("x")})
	fmt.Println("unknown category:", errors.Is(err, producer.ErrUnknownCategory))
	// Output:
	// message 1 is too large: true
	// unknown category: true
}

func ExampleProducer_WithCallAck() {
	ctx := context.Background()
	p := open() // waits for AckCommitted
	defer p.Close(ctx)

	quick := p.WithCallAck(producer.AckNone)
	fmt.Println(quick.Write(ctx, "web.access", producer.Message{Payload: []byte("GET / 200")}))
	// Output: <nil>
}

func ExampleWithIdentity() {
	ctx := context.Background()
	lines := []string{"one", "two", "three", "four"}

	// A program that copies lines keeps the producer's identity together with its place in the source.
	p := open(producer.WithIdentity(producer.Identity{ID: 42, Epoch: 1}))
	for _, l := range lines[:2] {
		p.WriteAsync("audit", &producer.Message{Payload: []byte(l)})
	}
	if err := p.Flush(ctx); err != nil {
		fmt.Println(err)
	}
	place, identity := 2, p.Identity()
	_ = p.Close(ctx)

	// After a crash it continues from there. What it writes again is recognised in an exactly_once category.
	p = open(producer.WithIdentity(identity))
	for _, l := range lines[place:] {
		p.WriteAsync("audit", &producer.Message{Payload: []byte(l)})
	}
	_ = p.Close(ctx)
	fmt.Println("next sequence:", p.Identity().Sequences[producer.Shard{Category: "audit"}].Next)
	// Output: next sequence: 4
}
