package etcdkv

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"scribe/storage/kv"
)

const (
	// firstKeys is how many entries the first request of a page asks for: so many of the largest are well below what the client accepts.
	firstKeys = 16
	// wantBytes is how large an answer of etcd should be. etcd bounds an answer by the number of its entries only.
	wantBytes = 4 << 20
)

// readPage collects a page from answers of one revision.
func (s *Store) readPage(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	var p kv.RangePage
	size, next := 0, firstKeys
	from := s.cfg.Prefix + r.Prefix
	if r.After >= r.Prefix {
		from = s.cfg.Prefix + r.After + "\x00"
	}
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.cfg.Prefix + r.Prefix))
	for {
		limit := min(next, r.Limit-len(p.Entries))
		// Sorting is etcd's own order of keys, which costs nothing. A revision of 0 is the newest one.
		res, err := s.getKeys(ctx, from, end, clientv3.WithLimit(int64(limit)), clientv3.WithRev(int64(p.Revision))) //nolint:gosec // it was etcd's
		switch {
		case status.Code(err) == codes.ResourceExhausted && limit > 1:
			next = limit / 2
			continue
		case err != nil:
			return kv.RangePage{}, err
		case p.Revision == 0:
			p.Revision = uint64(res.Header.Revision) //nolint:gosec // revisions are not negative
		}
		answered := 0
		for _, e := range res.Kvs {
			answered += len(e.Key) + len(e.Value)
			size += len(e.Key) - len(s.cfg.Prefix) + len(e.Value)
			if len(p.Entries) > 0 && size > kv.MaxRangeBytes {
				p.More = true
				return p, nil
			}
			p.Entries = append(p.Entries, s.entryOf(e))
		}
		if p.More = res.More; !p.More || len(p.Entries) == r.Limit {
			return p, nil
		}
		from = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
		next = max(1, min(2*limit, wantBytes*len(res.Kvs)/max(answered, 1), kv.MaxRange))
	}
}
