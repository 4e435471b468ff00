package metalogtest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

const zones = metalog.AnnotationZones

// annotateOne annotates a record and checks how many annotations were kept.
func (e *caseEnv) annotateOne(shard record.ShardID, lsn record.LSN, text string, want int) {
	e.Helper()
	kept, err := e.log.Annotate(e.ctx, []metalog.Annotation{{Shard: shard, LSN: lsn, Kind: zones, Data: []byte(text)}})
	if err != nil || kept != want {
		e.Fatalf("Annotate at LSN %d kept %d, %v, want %d", lsn, kept, err, want)
	}
}

// readNotes checks the annotations of a range of records, given as "LSN=text".
func (e *caseEnv) readNotes(shard record.ShardID, from, to record.LSN, want ...string) {
	e.Helper()
	found, until, err := e.log.Annotations(e.ctx, shard, from, to, zones, 0)
	if err != nil || until != to {
		e.Fatalf("Annotations from %d to %d ended at %d with %v", from, to, until, err)
	}
	if got := notesText(found); got != strings.Join(want, ",") {
		e.Fatalf("beside the records from %d to %d is %q, want %q", from, to, got, want)
	}
}

func notesText(notes []metalog.Annotation) string {
	out := make([]string, len(notes))
	for i, n := range notes {
		out[i] = fmt.Sprintf("%d=%s", n.LSN, n.Data)
	}
	return strings.Join(out, ",")
}

var annotateCases = []testCase{
	{name: "annotations stand beside their records", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		e.fillShard(shardA, epochs[0], "r", 5)
		e.fillShard(shardB, epochs[1], "r", 5)
		e.readNotes(shardA, 1, 6)
		e.annotateOne(shardA, 2, "two", 1)
		e.annotateOne(shardA, 4, "four", 1)
		e.annotateOne(shardB, 2, "other", 1)
		e.readNotes(shardA, 1, 6, "2=two", "4=four")
		e.readNotes(shardA, 2, 4, "2=two")
		e.readNotes(shardA, 3, 4)
		e.readNotes(shardA, 4, 4)
		e.readNotes(shardB, 1, 100, "2=other")
		e.annotateOne(shardA, 2, "again", 1)
		e.readNotes(shardA, 1, 3, "2=again")
		e.wantRecords(shardA, 1, "r0", "r1", "r2", "r3", "r4")
		e.appendAll(appendTo(shardA, epochs[0], "r5")) // the tail is where it was
		wantEqual(e, "tail", e.tailOf(shardA).NextLSN, 7)
	}},
	{name: "what has no record is not annotated", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 3)
		e.annotateOne(shardA, 4, "the tail", 0)
		e.annotateOne(shardB, 1, "no shard", 0)
		kept, err := e.log.Annotate(e.ctx, []metalog.Annotation{
			{Shard: shardA, LSN: 9, Kind: zones, Data: []byte("x")}, {Shard: shardA, LSN: 3, Kind: zones, Data: []byte("good")},
		})
		if err != nil || kept != 1 {
			e.Fatalf("kept %d, %v", kept, err)
		}
		e.appendAll(appendTo(shardA, epoch, "r3"))
		e.readNotes(shardA, 1, 10, "3=good")
		e.readNotes(shardB, 1, 10)
	}},
	{name: "annotations go with what is trimmed", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 4)
		for lsn := record.LSN(1); lsn <= 4; lsn++ {
			e.annotateOne(shardA, lsn, "x", 1)
		}
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 3))
		e.annotateOne(shardA, 2, "late", 0)
		e.readNotes(shardA, 1, 5, "3=x", "4=x")
		e.retireCategory(7)
		e.readNotes(shardA, 3, 5, "3=x", "4=x")
		e.eraseCategory()
		e.annotateOne(shardA, 4, "late", 0)
		e.readNotes(shardA, 1, 5)
	}},
	{name: "an answer of annotations is bounded", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 4)
		text := strings.Repeat("x", 100)
		for lsn := record.LSN(1); lsn <= 4; lsn++ {
			e.annotateOne(shardA, lsn, text, 1)
		}
		var got []string
		for from := record.LSN(1); from < 5; {
			found, until, err := e.log.Annotations(e.ctx, shardA, from, 5, zones, 250)
			if err != nil || until <= from || len(found) > 2 {
				e.Fatalf("from %d: %d annotations up to %d, %v", from, len(found), until, err)
			}
			got = append(got, notesText(found))
			from = until
		}
		if want := "1=" + text + ",2=" + text + "|3=" + text + ",4=" + text; strings.Join(got, "|") != want {
			e.Fatalf("got %q", got)
		}
		if found, until, err := e.log.Annotations(e.ctx, shardA, 2, 5, zones, 1); err != nil || until != 3 || len(found) != 1 {
			e.Fatalf("at least one: %d annotations up to %d, %v", len(found), until, err)
		}
		if _, until, err := e.log.Annotations(e.ctx, shardA, 1, 1<<40, zones, 0); err != nil || until != 1+metalog.MaxReadRecords {
			e.Fatalf("a range without an end was answered up to %d, %v", until, err)
		}
	}},
	{name: "what is no annotation is refused", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 1)
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
		e.readNotes(shardA, 1, 2)
	}},
	{name: "writers annotate, append and trim at the same time", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 1)
		var all sync.WaitGroup
		fail := make(chan error, 3)
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		all.Go(func() {
			defer cancel()
			for i := range 100 {
				if err := e.tryAppend(appendTo(shardA, epoch, "x")); err != nil {
					fail <- err
					return
				}
				if i%10 == 9 {
					if err := e.log.Trim(e.ctx, shardA, record.LSN(i-5)+record.FirstLSN); err != nil {
						fail <- err
						return
					}
				}
			}
		})
		all.Go(func() {
			for ctx.Err() == nil {
				var notes []metalog.Annotation
				for lsn := record.LSN(1); lsn < 120; lsn += 3 {
					notes = append(notes, metalog.Annotation{Shard: shardA, LSN: lsn, Kind: zones, Data: fmt.Append(nil, lsn)})
				}
				if _, err := e.log.Annotate(e.ctx, notes); err != nil {
					fail <- err
					return
				}
			}
		})
		all.Wait()
		select {
		case err := <-fail:
			e.Fatal(err)
		default:
		}
		found, _, err := e.log.Annotations(e.ctx, shardA, 1, 200, zones, 0)
		e.mustSucceed(err)
		st := e.tailOf(shardA)
		for _, n := range found {
			if n.LSN < st.FirstLSN || n.LSN >= st.NextLSN || string(n.Data) != fmt.Sprint(n.LSN) {
				e.Errorf("%d=%s is beside no record of %d to %d", n.LSN, n.Data, st.FirstLSN, st.NextLSN)
			}
		}
	}},
	{name: "annotations outlive a restart", needs: canRestart, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.annotateOne(shardA, 2, "two", 1)
		e.restartLog()
		e.readNotes(shardA, 1, 3, "2=two")
	}},
	{name: "a crash takes annotations at most", needs: canCrash, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.annotateOne(shardA, 2, "two", 1)
		e.log = e.in.Crash(e)
		e.wantRecords(shardA, 1, "r0", "r1")
		found, _, err := e.log.Annotations(e.ctx, shardA, 1, 3, zones, 0)
		if got := notesText(found); err != nil || got != "" && got != "2=two" {
			e.Fatalf("beside the records is %q, %v", got, err)
		}
	}},
}
