package readproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/view"
)

// A view in memcached is two values: a head of fixed length, which tells the length and the checksum of the body, and the body, a
// Payload in protobuf. DESIGN.md has the layout.
const (
	viewHeadLen = 16
	viewMagic   = "SVW1"
	// viewKeyVersion is part of every key. It changes when the same view of the same payload would have other rows or columns.
	viewKeyVersion = "v1"
)

// maxViewLen bounds the decompressed length of a view from memcached, in bytes: columns, and what Arrow adds to them.
const maxViewLen = 2 * maxTranscoded

// errViewValue means that a view from memcached is damaged, or of another format.
var errViewValue = errors.New("readproxy: damaged view")

// sharedViewKey returns the key of a view in memcached, without what tells head and body apart. View numbers mean nothing to other
// servers, so the key has all that determines the rows and columns. It names no query: the digest does not reveal its text.
func sharedViewKey(k *blockKey, of view.Key, shape *view.Shape, codec uint32) string {
	d := sha256.New()
	_, _ = fmt.Fprintf(d, "%d %d %d %t %d ", of.Category, of.Version, codec, shape.EarlyStop, maxTranscoded) // never fails
	_, _ = d.Write([]byte(shape.Key()))                                                                      // never fails
	b := append([]byte(k.sharedKey()), '.')
	for _, v := range []uint32{k.at, k.part} {
		b = append(strconv.AppendUint(b, uint64(v), 36), '.')
	}
	return viewKeyVersion + "." + string(hex.AppendEncode(b, d.Sum(nil)[:16]))
}

// encodeView returns the head and the body of a view for memcached. The body has nothing that differs between servers, so that one
// server's head matches another's body.
func encodeView(b *checkedBlock) (head, body []byte, err error) {
	body, err = proto.MarshalOptions{Deterministic: true}.Marshal(&scribev1.Payload{
		Codec: b.codec, Data: b.data, RawLength: b.rawLen, Crc: b.crc, View: &scribev1.PayloadView{
			Rows: b.view.GetRows(), Kept: b.view.GetKept(), Rejected: b.view.GetRejected(), Bad: b.view.GetBad(), Errors: b.view.GetErrors(),
			Losses: b.view.GetLosses(),
		},
	})
	if err != nil {
		return nil, nil, err
	}
	head = append(make([]byte, 0, viewHeadLen), viewMagic...)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(body))) //nolint:gosec // a message of the transport
	head = binary.LittleEndian.AppendUint32(head, record.CRC(body))
	return binary.LittleEndian.AppendUint32(head, record.CRC(head)), body, nil
}

// decodeViewHead returns the length and the checksum of the body.
func decodeViewHead(head []byte) (length, crc uint32, err error) {
	const sum = viewHeadLen - 4
	if len(head) != viewHeadLen || string(head[:4]) != viewMagic || binary.LittleEndian.Uint32(head[sum:]) != record.CRC(head[:sum]) {
		return 0, 0, fmt.Errorf("%w: head", errViewValue)
	}
	return binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[8:]), nil
}

// decodeView returns the cached form of a view. It keeps nothing of body.
func decodeView(body []byte, crc uint32) (*checkedBlock, error) {
	if record.CRC(body) != crc {
		return nil, fmt.Errorf("%w: checksum", errViewValue)
	}
	p := &scribev1.Payload{}
	if err := proto.Unmarshal(body, p); err != nil {
		return nil, fmt.Errorf("%w: %w", errViewValue, err)
	}
	if p.GetView() == nil || p.GetCodec() < codecPlain || p.GetCodec() > codecS2 || record.CRC(p.GetData()) != p.GetCrc() ||
		p.GetRawLength() > maxViewLen {
		return nil, fmt.Errorf("%w: body", errViewValue)
	}
	return &checkedBlock{
		data: p.GetData(), codec: p.GetCodec(), rawLen: p.GetRawLength(), crc: p.GetCrc(), view: p.GetView(), sums: sumPieces(p.GetData()), shared: true,
	}, nil
}

// viewsFromShared ends the builds of items whose views are in memcached, and returns the other items.
func (a *fetchAnswer) viewsFromShared(items []*answerItem) (rest []*answerItem) {
	s, now := a.s, a.s.deps.Now()
	if s.shared == nil || a.rule.Shared == KeepNever || a.limited != nil { // what a reader may see stays in this process
		return items
	}
	found := make([]*checkedBlock, len(items))
	var g errgroup.Group
	g.SetLimit(sharedLookups)
	for i, it := range items {
		if a.rule.isRecent(&it.pointer, now) && !it.pointer.Codec.IsEncrypted() {
			g.Go(func() error {
				found[i] = a.sharedView(it)
				return nil
			})
		}
	}
	_ = g.Wait() // each records its own result
	for i, it := range items {
		if found[i] == nil {
			rest = append(rest, it)
			continue
		}
		it.reused = true
		it.view.Stats.Hits.Add(1)
		a.endBuild(it, found[i], nil)
	}
	return rest
}

// sharedView returns an item's view from memcached; nil if it is missing or damaged.
func (a *fetchAnswer) sharedView(it *answerItem) *checkedBlock {
	s, key := a.s, a.sharedViewKey(it)
	get := func(key string, dst []byte) bool {
		found, err := s.shared.Get(s.running, key, dst)
		if err != nil {
			s.metrics.sharedFailures.WithLabelValues("get", sharedFailure(err)).Inc()
		}
		return found && err == nil
	}
	damaged := func(err error) *checkedBlock {
		s.metrics.damaged.WithLabelValues(tierShared).Inc()
		s.log.Error("view from memcached is damaged: making it again", "category", a.category, "view", it.view.ID, "error", err)
		if err := s.shared.Delete(s.running, key+viewHeadSuffix, viewHeadLen); err != nil {
			s.metrics.sharedFailures.WithLabelValues("delete", sharedFailure(err)).Inc()
		}
		return nil
	}
	head := make([]byte, viewHeadLen)
	if !get(key+viewHeadSuffix, head) {
		s.metrics.viewSharedMisses.Inc()
		return nil
	}
	length, crc, err := decodeViewHead(head)
	if err != nil {
		return damaged(err)
	}
	if int64(length) > int64(s.cfg.Memcached.ValueBytes) {
		s.metrics.viewSharedMisses.Inc() // another server's bound is larger
		return nil
	}
	body := make([]byte, length)
	if !get(key+viewBodySuffix, body) {
		s.metrics.viewSharedMisses.Inc()
		return nil
	}
	b, err := decodeView(body, crc)
	if err != nil {
		return damaged(err)
	}
	s.metrics.viewSharedHits.Inc()
	return b
}

const (
	viewHeadSuffix = ".h"
	viewBodySuffix = ".b"
)

func (a *fetchAnswer) sharedViewKey(it *answerItem) string {
	key := viewKeyOf(&it.pointer, it.view.ID, a.asked.codec)
	return sharedViewKey(&key, a.asked.key, it.view.Shape, a.asked.codec)
}

// shareView queues a view for memcached, unless it is from there.
func (a *fetchAnswer) shareView(it *answerItem, b *checkedBlock) {
	s, now := a.s, a.s.deps.Now()
	if s.shared == nil || a.limited != nil || b.shared || it.pointer.Codec.IsEncrypted() || !a.rule.isRecent(&it.pointer, now) || len(b.data) > s.cfg.Memcached.ValueBytes {
		return
	}
	head, body, err := encodeView(b)
	if err != nil || len(body) > s.cfg.Memcached.ValueBytes {
		s.metrics.fills.WithLabelValues("failed").Inc()
		return
	}
	key := a.sharedViewKey(it)
	s.fills.addFill(memcachedFill{key: key + viewBodySuffix, data: body, ttl: a.rule.timeLeft(&it.pointer, now), headKey: key + viewHeadSuffix, head: head})
}
