// Command exactlyonce reads a sequenced category, processes its messages, and writes one result for each into another category, exactly once,
// however often it is killed on the way.
//
//	scribe category create orders  --repeatable sequenced
//	scribe category create results --delivery exactly_once
//	go run ./examples/exactlyonce --in orders --out results --checkpoint ./orders.checkpoint
//
// Three things make it so:
//
//   - Reads are repeatable. After a crash the batches behind the last checkpoint come again, with the same messages and the same identifiers.
//   - What is done to a message depends on the message alone ([process]), so a batch has the same results the second time.
//   - Writes are idempotent: the results of a batch are written under [producer, batch identifier]. The identifier of a batch is the number of
//     its first message; as there is one result for each message, it is also the sequence number of the first result. The
//     category of the results, which is exactly_once, stores each sequence of a producer once.
//
// So it does not matter where it is killed. Before the write: nothing happened. After the write and before the checkpoint is kept: the batch
// comes again, and its results are recognised. Two that run at the same time write the same.
//
// A pipeline that makes more or fewer results than one for a message has no such numbers at hand. It keeps those of its producer together with
// the checkpoint: see producer.OpenIdentity.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/signal"
	"syscall"
	"time"

	"scribe/consumer"
	"scribe/producer"
)

type options struct {
	server, in, out, name, checkpoint string
	size                              consumer.BatchSize
	tls                               consumer.TLS
}

func main() {
	var o options
	flag.StringVar(&o.server, "server", consumer.DefaultServer, "any process of the cell")
	flag.StringVar(&o.in, "in", "", "sequenced category to read")
	flag.StringVar(&o.out, "out", "", "exactly_once category to write to")
	flag.StringVar(&o.name, "name", "", "name of the pipeline, which identifies its writes (default IN>OUT)")
	flag.StringVar(&o.checkpoint, "checkpoint", "", "file that stores the position in the category")
	flag.IntVar(&o.size.Messages, "messages", 100, "messages in a batch; only to be changed after an orderly stop")
	flag.DurationVar(&o.size.Span, "span", 100*time.Millisecond, "how long messages wait for a batch to fill; as --messages")
	flag.StringVar(&o.tls.CA, "tls-ca", os.Getenv("SCRIBE_CA"), "file with the authorities of servers' certificates, for https")
	flag.StringVar(&o.tls.Cert, "tls-cert", os.Getenv("SCRIBE_CERT"), "file with the certificate that proves who calls")
	flag.StringVar(&o.tls.Key, "tls-key", os.Getenv("SCRIBE_KEY"), "file with the key of --tls-cert")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil && !interrupted {
		fmt.Fprintln(os.Stderr, "exactlyonce:", err)
		os.Exit(1)
	}
}

// process is what is done to a message. It depends on nothing but the message, and has no effects.
func process(r *consumer.Record) []byte {
	return append(fmt.Appendf(nil, "%d ", r.Offset), bytes.ToUpper(r.Payload)...)
}

func run(ctx context.Context, o options) (err error) {
	if o.in == "" || o.out == "" || o.checkpoint == "" {
		return errors.New("missing flags: want --in, --out and --checkpoint")
	}
	start, found, err := consumer.LoadCheckpoint(o.checkpoint)
	if err != nil {
		return err
	}
	if !found {
		start = consumer.Earliest()
	}
	options := []consumer.Option{consumer.WithStart(start), consumer.WithName("exactlyonce")}
	if o.secured() {
		options = append(options, consumer.WithTLS(o.tls))
	}
	c, err := consumer.New(o.server, o.in, options...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var w *producer.Producer
	defer func() {
		if w != nil {
			_ = w.Close(context.WithoutCancel(ctx)) // everything was waited for
		}
	}()
	for batch, err := range c.SequencedBatches(ctx, o.size) {
		if err != nil {
			return err // a gap, too: what is gone can't be processed once
		}
		if w == nil {
			if w, err = o.writer(batch.ID); err != nil {
				return err
			}
		}
		results := make([]producer.Message, len(batch.Records))
		for i := range batch.Records {
			results[i] = producer.Message{Payload: process(&batch.Records[i]), Time: batch.Records[i].Time}
		}
		// One frame, with the sequences from the batch's identifier on: all of it is stored, or recognised, or nothing.
		if err := w.WriteAtomic(ctx, o.out, 0, results...); err != nil {
			return fmt.Errorf("write the results of batch %d: %w", batch.ID, err)
		}
		if err := consumer.SaveCheckpoint(o.checkpoint, c.Checkpoint()); err != nil {
			return err
		}
	}
	return nil
}

// writer returns the producer of the pipeline, whose next sequence is the identifier of the first batch.
func (o *options) writer(first uint64) (*producer.Producer, error) {
	name := o.name
	if name == "" {
		name = o.in + ">" + o.out
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	id := producer.Identity{
		ID: h.Sum64() | 1, Epoch: 1, // the same at each start: what was written before is recognised by it
		Sequences: map[producer.Shard]producer.Sequence{{Category: o.out}: {Epoch: 1, Next: first}},
	}
	// A write whose outcome is not known is repeated until it is.
	options := []producer.Option{producer.WithIdentity(id), producer.WithDeliveryTimeout(0)}
	if o.secured() {
		options = append(options, producer.WithTLS(producer.TLS(o.tls)))
	}
	return producer.New(o.server, options...)
}

// secured reports whether files for TLS are named.
func (o *options) secured() bool { return o.tls != consumer.TLS{} }
