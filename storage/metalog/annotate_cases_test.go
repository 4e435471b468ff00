package metalog_test

import (
	"bytes"
	"context"
	"fmt"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

const zones = metalog.AnnotationZones

var annotateCases = []testCase{
	{name: "what is no annotation is refused", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, 1)
		good := metalog.Annotation{Shard: shardA, LSN: 1, Kind: zones, Data: []byte("x")}
		for name, spoil := range map[string]func(*metalog.Annotation){
			"LSN 0":   func(n *metalog.Annotation) { n.LSN = 0 },
			"no kind": func(n *metalog.Annotation) { n.Kind = 0 },
			"empty":   func(n *metalog.Annotation) { n.Data = nil },
			"long":    func(n *metalog.Annotation) { n.Data = make([]byte, metalog.MaxAnnotation+1) },
		} {
			bad := good
			spoil(&bad)
			if _, err := e.log.Annotate(e.ctx, []metalog.Annotation{good, bad}); err == nil {
				e.Errorf("%s was taken", name)
			} else {
				e.wantError(err, metalog.ErrInvalid)
			}
		}
		for _, n := range []int{0, metalog.MaxAnnotations + 1} {
			_, err := e.log.Annotate(e.ctx, make([]metalog.Annotation, n))
			e.wantError(err, metalog.ErrInvalid)
		}
		long := make([]metalog.Annotation, metalog.MaxAnnotateBytes/metalog.MaxAnnotation+1)
		for i := range long {
			long[i] = metalog.Annotation{Shard: shardA, LSN: 1, Kind: zones, Data: bytes.Repeat([]byte("x"), metalog.MaxAnnotation)}
		}
		_, err := e.log.Annotate(e.ctx, long)
		e.wantError(err, metalog.ErrInvalid)
		_, _, err = e.log.Annotations(e.ctx, shardA, 0, 1, zones, 0)
		e.wantError(err, metalog.ErrInvalid)
		_, _, err = e.log.Annotations(e.ctx, shardA, 2, 1, zones, 0)
		e.wantError(err, metalog.ErrInvalid)
		_, _, err = e.log.Annotations(e.ctx, shardA, 1, 2, 0, 0)
		e.wantError(err, metalog.ErrInvalid)
		e.wantCalls("annotations A@1..2 -> none")
	}},
	{name: "writers annotate, append and trim at the same time", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, 1)
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		wait := e.startAll(1, func(int) error {
			for ctx.Err() == nil {
				var notes []metalog.Annotation
				for lsn := record.LSN(1); lsn < 120; lsn += 3 {
					notes = append(notes, metalog.Annotation{Shard: shardA, LSN: lsn, Kind: zones, Data: fmt.Append(nil, lsn)})
				}
				if _, err := e.log.Annotate(e.ctx, notes); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range 100 {
			e.appendAll(appendTo(shardA, epoch, "x"))
			if i%10 == 9 {
				e.mustSucceed(e.log.Trim(e.ctx, shardA, record.LSN(i-5)+record.FirstLSN))
			}
		}
		cancel()
		wait()
		found, _, err := e.log.Annotations(e.ctx, shardA, 1, 200, zones, 0)
		e.mustSucceed(err)
		st := e.tailOf(shardA)
		for _, n := range found {
			if n.LSN < st.FirstLSN || n.LSN >= st.NextLSN || string(n.Data) != fmt.Sprint(n.LSN) {
				e.Errorf("%d=%s is beside no record of %d to %d", n.LSN, n.Data, st.FirstLSN, st.NextLSN)
			}
		}
	}},
	{name: "a crash takes annotations at most", needs: canCrash, test: func(e *caseEnv) {
		e.wantCalls(`
			open A -> A e1 [1,1)
			append A r0 r1 -> 1
			annotate A@2=two -> kept 1
			crash
			read A@1 -> r0 r1
		`)
		const lost, kept = "annotations A@1..3 -> none\n", "annotations A@1..3 -> 2=two\n"
		if got := e.makeCalls(lost, ""); got != lost && got != kept {
			e.Fatalf("after the crash: %s", got)
		}
	}},
}
