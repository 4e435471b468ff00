package etcdkv

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
	// maxKeys bounds the entries of a request: an etcd server, which may run in this process, collects an answer before it sends it.
	maxKeys = 512
)

// readPage collects a page from answers of one revision: one of etcd's, or the newest if it is 0.
func (s *Store) readPage(ctx context.Context, r kv.KeyRange, revision int64) (kv.RangePage, error) {
	var p kv.RangePage
	if revision != 0 {
		p.Revision = s.revisionOf(revision)
	}
	size, next := 0, firstKeys
	from := s.cfg.Prefix + r.Prefix
	if r.After >= r.Prefix {
		from = s.cfg.Prefix + r.After + "\x00"
	}
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.cfg.Prefix + r.Prefix))
	for {
		limit := min(next, r.Limit-len(p.Entries))
		res, err := s.getKeys(ctx, from, end, clientv3.WithLimit(int64(limit)), clientv3.WithRev(revision))
		switch {
		case status.Code(err) == codes.ResourceExhausted && limit > 1:
			next = limit / 2
			continue
		case errors.Is(err, rpctypes.ErrCompacted) && len(p.Entries) > 0: // what follows is read at another revision
			p.More = true
			return p, nil
		case err != nil:
			return kv.RangePage{}, err
		case revision == 0:
			revision, p.Revision = res.Header.Revision, s.revisionOf(res.Header.Revision)
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
		next = max(1, min(2*limit, wantBytes*len(res.Kvs)/max(answered, 1), maxKeys))
	}
}
