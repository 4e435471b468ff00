package readproxy

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"scribe/columnar"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/view"
	"scribe/storage/blob/layout"
)

// blockEncoding is the encoding that read proxies of other regions request.
const blockEncoding = scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK

// fetchAnswer is the state of one request: its payloads, and the blocks that they need.
type fetchAnswer struct {
	s        *Server
	encoding scribev1.PayloadEncoding
	category string
	rule     Rule
	peer     bool         // a read proxy of another region asks
	asked    *viewRequest // the view wanted; nil = none
	// limited makes of payloads what the reader may see; nil = all. It comes first: nothing else of a restricted answer sees a stored payload.
	limited *restrict.Table
	items   []answerItem
	jobs    []blockJob
	// cost is the memory of the blocks and of the encoded payloads, in bytes; own is that of the encoded payloads alone.
	cost, own int64
	// held is the memory of the request, which stays while it waits for a quota.
	held int64
}

// answerItem is a requested payload.
type answerItem struct {
	pointer pointer.Pointer
	// whole: the payload is its whole block.
	whole bool
	job   int   // index in jobs
	err   error // the pointer is invalid, or the view can't be made
	// leftOut: the category's quota for reading left the payload out. sampleRate is how many it stands for; 0 for itself alone.
	leftOut    bool
	sampleRate uint32
	// For a view: the pointer's position and encoding, the view that serves the item, and its result or running build. reused
	// means that the result was made for another request.
	position logPosition
	encoded  []byte
	view     *view.View[*viewTranscoder]
	made     *checkedBlock
	reused   bool
	encoding *viewBuild
}

// blockJob is a block that items need.
type blockJob struct {
	key blockKey
	p   *pointer.Pointer
	// begin and end are the range of the decompressed block that the items need, in bytes.
	begin, end uint64
	block      *checkedBlock
	err        error
	// sent: the answer refers to its memory.
	sent bool
	// idle: no item needs it now.
	idle bool
}

// newAnswer decodes the pointers of a request until the blocks that they need fill an answer. It takes at least one.
func newAnswer(
	s *Server, encoding scribev1.PayloadEncoding, cat *scribev1.Category, req *scribev1.FetchRequest, wanted *viewRequest, limited *restrict.Table,
) *fetchAnswer {
	a := &fetchAnswer{
		s: s, asked: wanted, limited: limited, encoding: encoding, category: req.GetCategory(), rule: s.cfg.ruleFor(req.GetCategory(), cat.GetCache()), peer: req.GetPeer(),
	}
	a.items = make([]answerItem, 0, len(req.GetPointers())) // never grows: jobs point into it
	var known map[blockKey]int
	for i, encoded := range req.GetPointers() {
		if i > 0 && a.cost >= int64(s.cfg.AnswerBytes) {
			break
		}
		a.items = append(a.items, answerItem{})
		it := &a.items[i]
		p, err := pointer.Decode(encoded)
		if err != nil {
			it.err = pointerError(i, err)
			continue
		}
		p.Sequences = nil // they are only for the metadata engine, and may be most of the pointer
		it.pointer = p
		if wanted != nil {
			it.encoded = encoded
			if places := req.GetPlaces(); len(places) > 0 {
				it.position = logPosition{record.ShardID(places[i].GetShard()), record.LSN(places[i].GetLsn())}
			}
			if a.chooseView(it); it.made != nil {
				continue
			}
		}
		it.whole = p.Offset == 0 && p.Length == p.BlockRawLen || encoding == blockEncoding
		key := blockKeyOf(&it.pointer, !it.whole)
		at, ok := known[key]
		if !ok {
			at = len(a.jobs)
			a.jobs = append(a.jobs, blockJob{key: key, p: &it.pointer, begin: uint64(p.Offset)})
			if len(req.GetPointers()) > 1 {
				if known == nil {
					known = map[blockKey]int{}
				}
				known[key] = at
			}
			a.cost += int64(p.BlockLen)
			if !it.whole {
				a.cost += int64(p.BlockRawLen)
			}
		}
		it.job = at
		a.jobs[at].begin = min(a.jobs[at].begin, uint64(p.Offset))
		a.jobs[at].end = max(a.jobs[at].end, uint64(p.Offset)+uint64(p.Length))
		a.cost += outputBytes(encoding, &it.pointer, it.whole)
		if limited != nil {
			a.cost += restrictedBytes(&it.pointer)
		}
	}
	return a
}

// outputBytes bounds the memory of an encoded payload: decompressed, and in the requested encoding. JSON takes up to six bytes
// for one; Arrow adds offsets and times of each message, twice while it is assembled.
func outputBytes(encoding scribev1.PayloadEncoding, p *pointer.Pointer, whole bool) int64 {
	length, messages := int64(p.Length), int64(p.Messages)
	switch {
	case encoding == scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON:
		return length + min(6*length+80*messages, maxTranscoded)
	case encoding == scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW:
		return length + min(2*(length+48*messages), maxTranscoded)
	case whole:
		return 0
	default:
		return length
	}
}

// sentBlocks returns the blocks whose memory the answer refers to.
func (a *fetchAnswer) sentBlocks() []*checkedBlock {
	var blocks []*checkedBlock
	for i := range a.jobs {
		if a.jobs[i].sent {
			blocks = append(blocks, a.jobs[i].block)
		}
	}
	for i := range a.items {
		if b := a.items[i].made; b != nil {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

func pointerError(i int, err error) error {
	reason := scribev1.Reason_REASON_CORRUPT
	if errors.Is(err, pointer.ErrVersion) {
		reason = scribev1.Reason_REASON_INVALID // the pointer is valid, but not for this server
	}
	return rpc.Errorf(reason, "pointer %d of the request: %w", i, err)
}

// buildResponse builds the response.
func (a *fetchAnswer) buildResponse(ctx context.Context) *scribev1.FetchResponse {
	res := &scribev1.FetchResponse{Payloads: make([]*scribev1.Payload, 0, len(a.items))}
	slab := make([]scribev1.Payload, len(a.items))
	total := 0
	for i := range a.items {
		out := &slab[i]
		if err := a.fillPayload(ctx, &a.items[i], out); err != nil {
			out.Error = rpc.Info(a.hideDamage(&a.items[i].pointer, err))
		}
		if total += len(out.GetData()); i > 0 && total > a.s.cfg.AnswerBytes {
			break
		}
		res.Payloads = append(res.Payloads, out)
	}
	return res
}

// asTrimmed distinguishes a payload that retention has deleted from a lost one, so that a reader that was too slow gets a gap
// instead of an error. A blob is deleted only after all its payloads have expired, and persisted times are not before the time in
// the blob's id.
func (a *fetchAnswer) asTrimmed(p *pointer.Pointer, err error) error {
	if a.s.localName(p.Region) != "" {
		return err // its own region has already distinguished the two
	}
	cat, ok := a.s.deps.Categories.Lookup(a.category)
	if !ok || rpc.ReasonOf(err) != scribev1.Reason_REASON_MISSING {
		return err
	}
	retention := cat.GetRetention().AsDuration()
	if retention <= 0 {
		retention = pointer.DefaultRetention
	}
	if blobAge(p, a.s.deps.Now()) <= retention {
		return err
	}
	return rpc.Errorf(scribev1.Reason_REASON_TRIMMED, "the payload was removed after its retention of %v: %v", retention, err)
}

// fillPayload sets out to the payload of an item.
func (a *fetchAnswer) fillPayload(ctx context.Context, it *answerItem, out *scribev1.Payload) error {
	if it.err != nil {
		return it.err
	}
	if it.leftOut {
		out.SampledOut = true
		return nil
	}
	out.SampleRate = it.sampleRate
	if a.asked != nil {
		b := it.made
		said := &scribev1.PayloadView{
			Exact: it.view.Shape.Exact(a.asked.need), Rows: b.view.GetRows(), Kept: b.view.GetKept(), Rejected: b.view.GetRejected(),
			Bad: b.view.GetBad(), Errors: b.view.GetErrors(), View: it.view.ID, Reused: it.reused, Losses: b.view.GetLosses(),
		}
		out.Codec, out.Data, out.RawLength, out.Crc, out.View = b.codec, b.data, b.rawLen, b.crc, said
		if a.limited != nil {
			said.Exact, out.Restricted = false, b.part // the view has all rows that the reader may see, whatever its query says
		}
		return nil
	}
	j, p := &a.jobs[it.job], &it.pointer
	if err := a.checkJob(it); err != nil {
		return err
	}
	if it.whole && a.limited == nil && (a.encoding == scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW || a.encoding == blockEncoding) {
		out.Codec, out.Data, out.RawLength, out.Crc = j.block.codec, j.block.data, uint64(p.BlockRawLen), j.block.crc
		j.sent = true
		return nil
	}
	var data []byte
	err := a.withFrames(it, func(frames []byte) (err error) {
		if a.limited != nil {
			if frames, out.Restricted, err = a.visibleFrames(ctx, p, frames); err != nil {
				return err
			}
		}
		data, err = a.encodePayload(p, frames)
		return err
	})
	if err != nil {
		return err
	}
	out.Codec, out.Data, out.RawLength, out.Crc = uint32(pointer.CodecNone), data, uint64(len(data)), record.CRC(data)
	a.own += int64(cap(data))
	return nil
}

// checkJob returns the error of an item's block, also if it is of another category.
func (a *fetchAnswer) checkJob(it *answerItem) error {
	j, p := &a.jobs[it.job], &it.pointer
	switch {
	case j.err != nil:
		return a.asTrimmed(p, j.err)
	case it.whole && a.encoding != blockEncoding && j.block.category != a.category:
		return a.wrongCategory(p)
	}
	return nil
}

// withFrames calls fn with an item's frames, decompressed and with checked headers. They are valid until it returns.
func (a *fetchAnswer) withFrames(it *answerItem, fn func(frames []byte) error) error {
	p, raw := &it.pointer, a.jobs[it.job].block.data
	if codec := p.Codec.Compression(); it.whole && codec != pointer.CodecNone {
		buf := scratch.Get().(*[]byte)
		defer putScratch(buf)
		var err error
		if raw, err = layout.Decompress(*buf, codec, raw, int(p.BlockRawLen)); err != nil {
			return damagedError(p, err)
		}
		*buf = raw
	}
	frames, err := layout.Payload(raw, p)
	if err != nil {
		return damagedError(p, err)
	}
	if err := a.checkFrames(p, frames); err != nil {
		return err
	}
	return fn(frames)
}

// encodePayload encodes a payload's frames for the response. The result shares no memory with them.
func (a *fetchAnswer) encodePayload(p *pointer.Pointer, frames []byte) (data []byte, err error) {
	switch a.encoding {
	case scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON:
		data, err = appendJSON(make([]byte, 0, jsonRoom(p)), frames, maxTranscoded)
	case scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW:
		data, err = arrowStream(frames)
	default:
		return bytes.Clone(frames), nil
	}
	switch {
	case errors.Is(err, columnar.ErrArrowFrame):
		err = rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s holds Arrow batches of its producer: fetch it RAW", describePayload(p))
	case errors.Is(err, columnar.ErrTooLarge):
		err = rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s is too large in this encoding, fetch it RAW: %w", describePayload(p), err)
	case err != nil:
		err = damagedError(p, err)
	}
	return data, err
}

// checkFrames checks the headers of a payload's frames, and their category.
func (a *fetchAnswer) checkFrames(p *pointer.Pointer, frames []byte) error {
	for f, err := range record.Split(frames) {
		switch {
		case errors.Is(err, record.ErrVersion):
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", describePayload(p), err)
		case err != nil:
			return damagedError(p, err)
		case string(f.Category) != a.category:
			return a.wrongCategory(p)
		}
	}
	return nil
}

func (a *fetchAnswer) wrongCategory(p *pointer.Pointer) error {
	return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s does not belong to category %q", describePayload(p), a.category)
}

// scratch has buffers for decompressed payloads that are not part of an answer.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// keptScratch bounds the size of a buffer that is reused. Payloads are about 2 MB.
const keptScratch = 8 << 20

func putScratch(b *[]byte) {
	if cap(*b) <= keptScratch {
		*b = (*b)[:0]
		scratch.Put(b)
	}
}

// arrowStream encodes a payload as one Arrow IPC stream.
func arrowStream(frames []byte) ([]byte, error) {
	rec, err := columnar.FromFrames(frames, columnar.Meta{})
	if err != nil {
		return nil, err
	}
	defer rec.Release()
	// Times, offsets and the like take some 40 bytes a message beside the payload.
	return columnar.EncodeIPC(make([]byte, 0, len(frames)+48*int(rec.NumRows())+4096), rec)
}
