package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/bucket"
)

// The examples have a server in memory; a program names its address, and no services.
func example(opts ...consumer.Option) *consumer.Consumer {
	c := newCell()
	c.add(shardID(0, 1), "GET / 200", "GET /about 200")
	c.add(shardID(0, 2), "GET /missing 404")
	r, err := consumer.New("", categoryName, append([]consumer.Option{consumer.WithServices(c, c)}, opts...)...)
	if err != nil {
		panic(err)
	}
	return r
}

func Example() {
	// consumer.New("http://127.0.0.1:7420", "web.access", ...)
	c := example(consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	defer c.Close()
	for rec, err := range c.Records(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", rec.Payload)
	}
	// Output:
	// GET / 200
	// GET /about 200
	// GET /missing 404
}

func ExampleConsumer_Checkpoint() {
	ctx := context.Background()
	c := example(consumer.WithStart(consumer.Earliest()))
	defer c.Close()

	var kept string
	for rec, err := range c.Records(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", rec.Payload) // first deal with it,
		kept = c.Checkpoint()           // then keep the place behind it: in a file, or with the results
		break
	}

	start, err := consumer.Checkpoint(kept)
	if err != nil {
		fmt.Println(err)
		return
	}
	c = example(consumer.WithStart(start), consumer.WithUntilEnd())
	defer c.Close()
	for rec, err := range c.Records(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("then %s\n", rec.Payload)
	}
	// Output:
	// GET / 200
	// then GET /about 200
	// then GET /missing 404
}

// A program that goes on where it was: each message once, as far as its results and the file are saved together.
func ExampleSaveCheckpoint() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "access.checkpoint")
	life := func(most int) error {
		start, found, err := consumer.LoadCheckpoint(file)
		if err != nil {
			return err // it was cut or changed
		}
		if !found {
			start = consumer.Earliest()
		}
		c := example(consumer.WithStart(start), consumer.WithUntilEnd())
		defer c.Close()
		for rec, err := range c.Records(context.Background()) {
			gap := new(consumer.GapError)
			if errors.As(err, &gap) {
				fmt.Println(gap.Reason, gap.Messages)
				continue
			}
			if err != nil {
				return err
			}
			fmt.Printf("%s\n", rec.Payload)
			if err := consumer.SaveCheckpoint(file, c.Checkpoint()); err != nil {
				return err
			}
			if most--; most == 0 {
				break // it dies here
			}
		}
		return nil
	}
	fmt.Println(life(1))
	fmt.Println(life(0))
	// Output:
	// GET / 200
	// <nil>
	// GET /about 200
	// GET /missing 404
	// <nil>
}

func ExampleConsumer_Backlog() {
	c := example(consumer.WithStart(consumer.Earliest()))
	defer c.Close()
	for _, err := range c.Records(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if b := c.Backlog(); b.Known {
			fmt.Println(b.Messages, "messages to go,", c.Stats().Gaps, "gaps")
		}
		break
	}
	// Output: 2 messages to go, 0 gaps
}

func ExampleGapError() {
	c := newCell()
	c.add(shardID(0, 1), "old")
	c.add(shardID(0, 1), "new")
	c.add(shardID(0, 1), "newer")
	start := func(opts ...consumer.Option) *consumer.Consumer {
		r, err := consumer.New("", categoryName, append(opts, consumer.WithServices(c, c), consumer.WithUntilEnd())...)
		if err != nil {
			panic(err)
		}
		return r
	}
	r := start(consumer.WithStart(consumer.Earliest()))
	defer r.Close()
	for rec, err := range r.Records(context.Background()) {
		fmt.Printf("%s %v\n", rec.Payload, err)
		break
	}
	c.trim(shardID(0, 1), 3) // retention removes LSN 1 and 2 before the reader comes back
	for rec, err := range r.Records(context.Background()) {
		gap := new(consumer.GapError)
		switch {
		case errors.As(err, &gap): // the iteration goes on
			fmt.Printf("LSN %d to %d of shard %v: %s\n", gap.From, gap.To-1, gap.Shard, gap.Reason)
		case err != nil:
			fmt.Println(err)
			return
		default:
			fmt.Printf("%s\n", rec.Payload)
		}
	}
	// Output:
	// old <nil>
	// LSN 2 to 2 of shard 7/0/1: trimmed
	// newer
}

// Package columns yields what a consumer reads as Arrow record batches.
func Example_batches() {
	c := example(consumer.WithStart(consumer.At(time.Unix(0, 0))), consumer.WithUntilEnd())
	defer c.Close()
	for batch, err := range columns.Batches(context.Background(), c) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch.NumRows(), "rows of", batch.Column(batch.Schema().FieldIndices("payload")[0]))
	}
	// Output:
	// 2 rows of ["GET / 200" "GET /about 200"]
	// 1 rows of ["GET /missing 404"]
}

// A query yields rows as Arrow record batches.
func Example_query() {
	c := newCell()
	c.add(shardID(0, 1), "GET / 200", "GET /missing 404")
	// columns.NewQuery(ctx, "http://127.0.0.1:7420", `SELECT ...`)
	q, err := columns.NewQuery(context.Background(), "", `SELECT payload FROM "web.access" WHERE payload LIKE '%404'`,
		consumer.WithServices(c, c), consumer.WithControl(c))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer q.Close()
	for batch, err := range q.Batches(context.Background()) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch.Column(0))
	}
	// Output: ["GET /missing 404"]
}

// A filter leaves out messages.
func Example_where() {
	c := newCell()
	c.add(shardID(0, 1), "GET / 200", "GET /missing 404")
	r, err := consumer.New("", categoryName, columns.Where(`payload LIKE '%404'`),
		consumer.WithServices(c, c), consumer.WithControl(c), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	for rec, err := range r.Records(context.Background()) {
		fmt.Printf("%s %v\n", rec.Payload, err)
	}
	// Output: GET /missing 404 <nil>
}

func ExampleGroup() {
	// consumer.NewGroup("http://127.0.0.1:7420", "web.access", "audit", ...)
	c, coordinator := newCell(), newGroupCell(bucket.Pointers)
	c.add(shardID(0, 1), "GET / 200", "GET /about 200")
	read := func() {
		g, err := consumer.NewGroup("", categoryName, "audit", consumer.WithServices(c, c), consumer.WithGroupService(coordinator),
			consumer.WithStart(consumer.Earliest()), consumer.WithAutoCommit(0), consumer.WithUntilEnd())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer g.Close()
		for rec, err := range g.Records(context.Background()) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%s\n", rec.Payload)                        // first deal with it,
			if err := g.Commit(context.Background()); err != nil { // then commit: no member is given it again
				fmt.Println(err)
				return
			}
		}
	}
	read()
	c.add(shardID(0, 1), "GET /missing 404")
	read() // another member, or the same one later
	// Output:
	// GET / 200
	// GET /about 200
	// GET /missing 404
}
