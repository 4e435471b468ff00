package etcdjournal

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"scribe/internal/base/entropy"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/schema"
)

// partsAtOnce bounds the parts that are put, or read, at the same time.
const partsAtOnce = 4

// storeEntry returns what is stored in the place of an entry. It puts the parts of a large one first: under keys of this try alone,
// which nobody reads unless the transaction succeeds that names them.
func (j *Journal) storeEntry(ctx context.Context, next journal.Head, entry []byte) ([]byte, error) {
	if err := j.checkFull(); err != nil {
		return nil, err
	}
	if len(entry) <= schema.MaxPart {
		return schema.AppendStoredEntry(make([]byte, 0, len(entry)+1), entry), nil
	}
	p := schema.Parts{Size: len(entry)}
	var random *entropy.Source // ids of tries decide nothing
	random.Read(p.Try[:])
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for i := range p.Count() {
		part := entry[i*schema.MaxPart : min((i+1)*schema.MaxPart, len(entry))]
		g.Go(func() error { return j.putPart(within, j.partKey(next.Seq, p.Try, i), part) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return schema.AppendStoredParts(nil, p)
}

func (j *Journal) putPart(ctx context.Context, key string, part []byte) error {
	c, cancel := j.request(ctx)
	defer cancel()
	if _, err := j.client.Put(c, key, string(part)); err != nil {
		return j.failed(ctx, "put part "+key, err)
	}
	return nil
}

// loadEntry returns the entry that a value stands for.
func (j *Journal) loadEntry(ctx context.Context, seq uint64, stored []byte) ([]byte, error) {
	entry, p, err := schema.ParseStored(stored)
	if err != nil {
		return nil, fmt.Errorf("etcd journal: entry %d: %w", seq, err)
	}
	if entry != nil {
		return entry, nil
	}
	for first := 0; first < p.Count(); first += partsAtOnce {
		end := min(first+partsAtOnce, p.Count())
		c, cancel := j.request(ctx)
		resp, err := j.client.Get(c, j.partKey(seq, p.Try, first), clientv3.WithRange(j.partKey(seq, p.Try, end)))
		cancel()
		if err != nil {
			return nil, j.failed(ctx, "get parts", err)
		}
		if len(resp.Kvs) != end-first {
			return nil, j.missing(ctx, seq, "a part of it is missing")
		}
		for _, kv := range resp.Kvs {
			entry = append(entry, kv.Value...)
		}
	}
	if len(entry) != p.Size {
		return nil, &journal.CorruptError{Seq: seq, Detail: fmt.Sprintf("its parts have %d bytes, not %d", len(entry), p.Size)}
	}
	return entry, nil
}

// sweepPage bounds the keys that a sweep looks at.
const sweepPage = 1000

// sweepParts removes parts of tries that failed: those of entries up to the head's that the entries do not name, since a swap that
// would name them can't succeed any more. It looks at one page of keys, from the one given on, and returns where the next begins.
func (j *Journal) sweepParts(ctx context.Context, from string) (next string, err error) {
	head, err := j.Head(ctx)
	if err != nil {
		return from, err
	}
	begin := max(from, j.config.Prefix+"p/")
	c, cancel := j.request(ctx)
	defer cancel()
	resp, err := j.client.Get(c, begin, clientv3.WithRange(j.partsPrefix(head.Seq+1)), clientv3.WithKeysOnly(), clientv3.WithLimit(sweepPage))
	if err != nil {
		return from, j.failed(ctx, "list parts", err)
	}
	var last, tryPrefix string
	for _, kv := range resp.Kvs {
		last = string(kv.Key)
		if tryPrefix != "" && strings.HasPrefix(last, tryPrefix) {
			continue
		}
		tryPrefix = last[:strings.LastIndexByte(last, '/')+1]
		if err := j.sweepTry(ctx, tryPrefix); err != nil {
			return from, err
		}
	}
	if !resp.More {
		return "", nil
	}
	return last + "\x00", nil
}

// sweepTry removes the parts of a try unless the entry names it.
func (j *Journal) sweepTry(ctx context.Context, tryPrefix string) error {
	var seq uint64
	var try string
	if _, err := fmt.Sscanf(strings.TrimPrefix(tryPrefix, j.config.Prefix+"p/"), "%16x/%32s", &seq, &try); err != nil {
		return nil // not a key of ours: left alone
	}
	c, cancel := j.request(ctx)
	defer cancel()
	resp, err := j.client.Get(c, j.entryKey(seq))
	if err != nil {
		return j.failed(ctx, "get an entry", err)
	}
	if len(resp.Kvs) > 0 {
		named, p, err := schema.ParseStored(resp.Kvs[0].Value)
		if err != nil || (named == nil && p.Try.String() == strings.TrimSuffix(try, "/")) {
			return err
		}
	}
	if _, err := j.client.Delete(c, tryPrefix, clientv3.WithPrefix()); err != nil {
		return j.failed(ctx, "remove parts", err)
	}
	return nil
}
