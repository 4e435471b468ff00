package etcdjournal

import (
	"context"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/storage/metalog/journal"
)

// Bounds of reading. Entries that are not divided have up to 1 MiB, and etcd bounds answers by number only: so many entries of that
// size, times pagesAhead, is the most that a Read holds in memory.
const (
	firstPage  = 4
	largePage  = 64
	pageBytes  = 2 << 20
	pagesAhead = 3
)

// entryPage is an answer with the entries from a number on.
type entryPage struct {
	from, count uint64
	kvs         []*mvccpb.KeyValue
	err         error
}

// Read implements journal.Journal. It asks for pages before it needs them: a round trip may take longer than the work on a page.
func (j *Journal) Read(ctx context.Context, from, to uint64, fn func(seq uint64, entry []byte) error) error {
	if err := j.enterCall(ctx); err != nil {
		return err
	}
	ahead, stop := context.WithCancel(ctx)
	var pages []chan entryPage
	defer func() {
		stop()
		for _, p := range pages {
			<-p
		}
	}()
	size, asked := uint64(firstPage), from
	for next := from; next <= to; {
		for len(pages) < pagesAhead && asked <= to && asked >= from {
			count := min(size, to-asked+1)
			pages = append(pages, j.askPage(ahead, asked, count))
			asked += count
		}
		page := <-pages[0]
		pages = pages[1:]
		largest, err := j.deliverPage(ctx, page, fn)
		if err != nil {
			return err
		}
		next = page.from + page.count
		size = max(min(pageBytes/uint64(max(largest, 1)), 2*size, largePage), 1)
	}
	return nil
}

// askPage asks for entries in the background; the answer comes in any case.
func (j *Journal) askPage(ctx context.Context, from, count uint64) chan entryPage {
	answer := make(chan entryPage, 1)
	go func() {
		c, cancel := j.request(ctx)
		defer cancel()
		p := entryPage{from: from, count: count}
		resp, err := j.client.Get(c, j.entryKey(from), clientv3.WithRange(j.entryKey(from+count)))
		if err != nil {
			p.err = j.failed(ctx, "read entries", err)
		} else {
			p.kvs = resp.Kvs
		}
		answer <- p
	}()
	return answer
}

// deliverPage calls fn with the entries of a page, and returns the size of the largest one.
func (j *Journal) deliverPage(ctx context.Context, p entryPage, fn func(seq uint64, entry []byte) error) (largest int, err error) {
	if p.err != nil {
		return 0, p.err
	}
	for i := range p.count {
		seq := p.from + i
		if i >= uint64(len(p.kvs)) || j.seqOf(p.kvs[i]) != seq {
			return 0, j.missing(ctx, seq, "it is missing")
		}
		entry, err := j.loadEntry(ctx, seq, p.kvs[i].Value)
		if err != nil {
			return 0, err
		}
		largest = max(largest, len(p.kvs[i].Value))
		if err := fn(seq, entry); err != nil {
			return 0, err
		}
	}
	return largest, nil
}

// seqOf returns the number in an entry's key; 0 if there is none.
func (j *Journal) seqOf(kv *mvccpb.KeyValue) uint64 {
	seq, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), j.config.Prefix+"e/"), 16, 64)
	if err != nil {
		return 0
	}
	return seq
}

// missing tells an entry that was trimmed from one that was lost: entries above the snapshot are never trimmed.
func (j *Journal) missing(ctx context.Context, seq uint64, detail string) error {
	head, err := j.Head(ctx)
	if err != nil {
		return err
	}
	if seq <= head.Snapshot {
		return &journal.TrimmedError{Seq: seq, Snapshot: head.Snapshot}
	}
	return &journal.CorruptError{Seq: seq, Detail: detail}
}

// trimStep is how many entries one request removes.
const trimStep = 1000

// Trim implements journal.Journal. It removes the oldest entries first, so that what is left has no hole.
func (j *Journal) Trim(ctx context.Context, below uint64) error {
	head, err := j.Head(ctx)
	if err != nil {
		return err
	}
	if err := journal.ValidateTrim(head, below); err != nil {
		return err
	}
	for {
		first, err := j.firstEntry(ctx, below)
		if err != nil || first == 0 {
			return err
		}
		end := min(first+trimStep, below)
		if err := j.removeRange(ctx, j.config.Prefix+"e/", j.entryKey(end)); err != nil {
			return err
		}
		if err := j.removeRange(ctx, j.config.Prefix+"p/", j.partsPrefix(end)); err != nil {
			return err
		}
	}
}

// firstEntry returns the number of the oldest entry below another; 0 if there is none.
func (j *Journal) firstEntry(ctx context.Context, below uint64) (uint64, error) {
	c, cancel := j.request(ctx)
	defer cancel()
	resp, err := j.client.Get(c, j.config.Prefix+"e/", clientv3.WithRange(j.entryKey(below)), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return 0, j.failed(ctx, "find the oldest entry", err)
	}
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	return j.seqOf(resp.Kvs[0]), nil
}

func (j *Journal) removeRange(ctx context.Context, from, end string) error {
	c, cancel := j.request(ctx)
	defer cancel()
	if _, err := j.client.Delete(c, from, clientv3.WithRange(end)); err != nil {
		return j.failed(ctx, "remove entries", err)
	}
	return nil
}
