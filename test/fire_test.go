package test

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"scribe/internal/testkit/s3test"
	"scribe/producer"
	follower "scribe/test/follow"
	past "scribe/test/history"
	"scribe/test/netfault"
	"scribe/test/program"
)

// fireSeed repeats the choices of a fire.
const fireSeed = "SCRIBE_TEST_SEED"

// Categories of the fire.
const (
	fireBrief   = "brief"   // the shortest retention
	fireChanged = "changed" // two minutes, then one, then an hour
	fireLasting = "lasting" // an hour
	fireDeleted = "deleted" // an hour, and deleted
)

// fire is a cell whose retention works while everything goes on.
type fire struct {
	*testing.T
	rng   *rand.Rand
	began time.Time
	env   []string
	s3    *s3test.Server
	store *netfault.Store
	h     *past.History

	control, proxy string
	listen         []string // where the readers' servers listen, every time
	servers        []string // the readers' addresses
	readers        []*program.Process
	batchers       []*program.Process
	collectors     []*program.Process

	followers []*follower.Follower
	running   sync.WaitGroup
	writing   sync.WaitGroup
	// trimmed is closed when retention has removed what readers that stand still have not read.
	trimmed chan struct{}
}

// TestRetentionUnderFire: writers write, readers follow at the tail, in the middle, just ahead of the trim, and behind it; retention is
// changed down and up; batchers are stopped between a blob and its pointers until the collector was there; collectors are killed again and
// again. What is owed stays, what a reader lost it is told of to the message, orphans go, and in the end nothing is left.
func TestRetentionUnderFire(t *testing.T) {
	t.Parallel()
	f := light(t)
	reading, endReading := context.WithCancel(t.Context())
	defer f.running.Wait()
	defer endReading()
	writing, endWriting := context.WithCancel(t.Context())
	defer f.writing.Wait()
	defer endWriting()
	deleting, endDeleted := context.WithCancel(writing)
	defer endDeleted()
	deleted := make(chan struct{})
	f.writing.Go(func() { defer close(deleted); f.write(deleting, fireDeleted) })
	for _, category := range []string{fireBrief, fireChanged, fireLasting} {
		f.writing.Go(func() { f.write(writing, category) })
		f.follow(reading, follower.Config{Name: "tail", Category: category, Window: time.Second})
	}
	f.readersOfEveryAge(reading)

	f.burn(6 * time.Second)
	f.stall()
	f.burn(20 * time.Second)
	f.retain(fireChanged, time.Minute)
	f.burn(25 * time.Second)
	endDeleted()
	<-deleted
	ok(t, nil, "category", "delete", fireDeleted, "--server", f.control)
	f.burn(40 * time.Second)
	f.stall()
	f.burn(68 * time.Second)
	f.awaitTrim(fireBrief)
	f.retain(fireChanged, time.Hour)
	f.forget()
	close(f.trimmed)
	f.burn(73 * time.Second)
	endWriting()
	f.writing.Wait()
	f.compare(reading, endReading)
	f.freed()
}

// light starts a cell with two collectors, on an S3 server.
func light(t *testing.T) *fire {
	t.Helper()
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // after 1970
	if text := os.Getenv(fireSeed); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", fireSeed, err)
		}
		seed = n
	}
	t.Logf("%s=%d", fireSeed, seed)
	f := &fire{T: t, rng: rand.New(rand.NewPCG(seed, 1)), s3: s3test.Start(t), h: past.New(), trimmed: make(chan struct{})} //nolint:gosec // reproducible on purpose
	f.store = netfault.NewStore(t, "127.0.0.1:0", f.s3.Endpoint, seed)
	f.env = append([]string{
		"SCRIBE_BLOBS=s3", "SCRIBE_S3_ENDPOINT=http://" + f.store.Endpoint(), "SCRIBE_S3_BUCKET=" + f.s3.Bucket, "SCRIBE_S3_REGION=" + f.s3.Region,
		"SCRIBE_S3_ACCESS_KEY=" + f.s3.AccessKey, "SCRIBE_S3_SECRET_KEY=" + f.s3.SecretKey, "SCRIBE_FLUSH_FLOOR=300ms", "SCRIBE_LEASE_TTL=1s",
	}, hasty...)
	f.control = f.serve("controlplane,metalog", "control").URL
	f.env = append(f.env, "SCRIBE_CONTROL="+f.control, "SCRIBE_METALOG="+f.control)
	f.proxy = f.serve("writeproxy", "writeproxy").URL
	for i := range 2 {
		n := strconv.Itoa(i + 1)
		f.batchers = append(f.batchers, f.serve("batcher", "batcher-"+n))
		f.listen = append(f.listen, program.Reserve(t))
		f.readers = append(f.readers, f.serveAt("readstream,readproxy", "reader-"+n, f.listen[i]))
		f.servers = append(f.servers, f.readers[i].URL)
		f.collectors = append(f.collectors, f.serve("retention", "collector-"+n))
	}
	f.began = time.Now()
	for category, keeps := range map[string]time.Duration{fireBrief: time.Minute, fireChanged: 2 * time.Minute, fireLasting: time.Hour, fireDeleted: time.Hour} {
		f.h.Category(category, past.Guarantees{})
		f.h.Retain(category, keeps, time.Now())
		ok(t, nil, "category", "create", category, "--retention", keeps.String(), "--server", f.control)
	}
	return f
}

// serve starts a process of the cell.
func (f *fire) serve(roles, id string) *program.Process { return f.serveAt(roles, id, "127.0.0.1:0") }

func (f *fire) serveAt(roles, id, listen string) *program.Process {
	f.Helper()
	return serve(f, f.env, "serve", "--roles", roles, "--id", id, "--data", filepath.Join(f.TempDir(), id), "--listen", listen)
}

// forget kills the readers' servers, so that what they have in memory is gone, and starts them again.
func (f *fire) forget() {
	f.Helper()
	for i, r := range f.readers {
		r.Kill()
		f.readers[i] = f.serveAt("readstream,readproxy", "reader-"+strconv.Itoa(i+1), f.listen[i])
	}
}

// write writes to a category, a few messages at a time, until the context ends.
func (f *fire) write(ctx context.Context, category string) {
	p, err := producer.New(f.proxy, producer.WithAck(producer.AckCommitted), producer.WithDeliveryTimeout(0),
		producer.WithRequestTimeout(4*time.Second), producer.WithBackoff(10*time.Millisecond, 500*time.Millisecond))
	if err != nil {
		f.Error(err)
		return
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(category)))) //nolint:gosec // reproducible on purpose
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; {
		var msgs []past.Message
		var batch []producer.Message
		for range 1 + rng.IntN(5) {
			id := past.ID{Writer: category, Index: n}
			msgs = append(msgs, past.Message{ID: id, Payload: past.Payload(id, 2000+rng.IntN(8000), rng)})
			batch = append(batch, producer.Message{Payload: msgs[len(msgs)-1].Payload})
			n++
		}
		a := f.h.Begin(category, 0, msgs...)
		if err := p.Write(f.Context(), category, batch...); err != nil {
			f.Errorf("write to %s: %v", category, err)
			break
		}
		for i := range msgs {
			a.Acked(i, past.Committed)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitLimit)
	defer cancel()
	if err := p.Close(closing); err != nil {
		f.Errorf("close the producer of %s: %v", category, err)
	}
}

// follow starts a reader.
func (f *fire) follow(ctx context.Context, c follower.Config) *follower.Follower {
	c.Servers, c.Rand = f.servers, rand.New(rand.NewPCG(f.rng.Uint64(), 1)) //nolint:gosec // reproducible on purpose
	r := follower.New(f.h, c)
	f.running.Go(func() {
		if err := r.Run(ctx); err != nil {
			f.Error(err)
		}
	})
	f.followers = append(f.followers, r)
	return r
}

// readersOfEveryAge starts readers that keep a distance to the tail, and readers that stand still for too long.
func (f *fire) readersOfEveryAge(ctx context.Context) {
	age := func(d time.Duration) func(time.Time) time.Duration {
		return func(persisted time.Time) time.Duration { return time.Until(persisted.Add(d)) }
	}
	still := func(time.Time) time.Duration {
		select {
		case <-f.trimmed:
		case <-ctx.Done():
		}
		return 0
	}
	const small, edge = 64 << 10, 59500 * time.Millisecond
	f.follow(ctx, follower.Config{Name: "mortal", Category: fireBrief, Window: past.Unbounded, Lifetime: 60})
	f.follow(ctx, follower.Config{Name: "middle", Category: fireBrief, Window: time.Second, Pace: age(30 * time.Second), Prefetch: small})
	for _, category := range []string{fireBrief, fireChanged} {
		f.follow(ctx, follower.Config{Name: "edge", Category: category, Window: past.Unbounded, Pace: age(edge), Prefetch: small})
		f.follow(ctx, follower.Config{Name: "mortal edge", Category: category, Window: past.Unbounded, Pace: age(edge), Prefetch: small, Lifetime: 60})
		f.follow(ctx, follower.Config{Name: "behind", Category: category, Window: past.Unbounded, Pace: still, Prefetch: small})
	}
}

// retain changes a category's retention.
func (f *fire) retain(category string, keeps time.Duration) {
	f.Helper()
	f.h.Retain(category, keeps, time.Now())
	ok(f, nil, "category", "update", category, "--retention", keeps.String(), "--server", f.control)
	f.h.Retained(category, time.Now())
}

// burn lets everything go on until a time after the beginning, and kills collectors meanwhile: each is started again.
func (f *fire) burn(until time.Duration) {
	f.Helper()
	for {
		left := time.Until(f.began.Add(until))
		next := time.Duration(500+f.rng.IntN(3000)) * time.Millisecond
		select {
		case <-time.After(min(left, next)):
		case <-f.Context().Done():
		}
		if left <= next {
			return
		}
		i := f.rng.IntN(len(f.collectors))
		f.collectors[i].Kill()
		f.collectors[i] = f.serve("retention", "collector-"+strconv.Itoa(i+1))
	}
}

// awaitTrim waits until the log of a category begins behind what a reader that stands still was sent.
func (f *fire) awaitTrim(category string) {
	f.Helper()
	const sent = 20 // pointers, of some hundred that were written
	eventually(f.T, waitLimit, "what expired of "+category+" is trimmed", func() bool {
		first, _, _ := bytes.Cut(ok(f, nil, "inspect", "log", category, "--server", f.control), []byte("\n"))
		var pointer struct{ LSN uint64 }
		if err := json.Unmarshal(first, &pointer); err != nil {
			f.Fatalf("%s: %v", first, err)
		}
		return pointer.LSN > sent
	})
}

// stall stops a batcher between a blob and its pointers until the collector has deleted the blob, and lets it go on.
func (f *fire) stall() {
	f.Helper()
	held := f.store.HoldPut("/" + f.s3.Bucket + "/blobs/")
	select {
	case <-held.Reached:
	case <-time.After(waitLimit):
		f.Fatal("nothing is put any more")
	}
	b := f.batchers[f.rng.IntN(len(f.batchers))]
	b.Pause()
	key := strings.TrimPrefix(held.Path, "/"+f.s3.Bucket+"/")
	client := f.s3.Client()
	began := time.Now()
	eventually(f.T, waitLimit, "the blob of a writer that stands still is deleted", func() bool {
		_, err := client.StatObject(f.Context(), f.s3.Bucket, key, minio.StatObjectOptions{})
		return err != nil && minio.ToErrorResponse(err).StatusCode == 404
	})
	f.Logf("%s, whose writer stood still, was deleted after %v", key, time.Since(began).Round(time.Millisecond))
	held.Release()
	b.Resume()
}

// compare waits until the readers at the tail have everything, and compares what each reader got with what was ever there.
func (f *fire) compare(ctx context.Context, end context.CancelFunc) {
	f.Helper()
	now := f.h.Now()
	whole := map[string]*follower.Follower{}
	for _, r := range f.followers {
		if r.Name == "tail" || r.Name == "mortal" {
			eventually(f.T, waitLimit, r.Name+" of "+r.Category+" has everything", func() bool { return f.h.CountMissing(r.Trail, now) == 0 })
		}
		if r.Name == "tail" {
			whole[r.Category] = r
		}
	}
	// Whoever comes now finds what has not expired.
	for category, tail := range whole {
		late := f.follow(ctx, follower.Config{Name: "late", Category: category, Window: past.Unbounded, Late: true})
		eventually(f.T, waitLimit, "who comes late to "+category+" has what is left", func() bool { return f.h.Reaches(late.Trail, tail.Trail.Reading()) })
	}
	end()
	f.running.Wait()
	missed := map[string]int{}
	for _, r := range f.followers {
		all := whole[r.Category].Trail.Reading()
		report := f.h.CheckTrail(r.Trail, r.Trail.Until(all))
		if err := report.Err(); err != nil {
			f.Errorf("%s of %s:\n%v", r.Name, r.Category, err)
		}
		missed[r.Name] += report.Missed
		f.Logf("%s of %s: %d of %d messages, told of %d gaps, of %d messages; %d deaths", r.Name, r.Category, report.Seen, all.Len(), r.Gaps(), report.Missed, r.Deaths())
	}
	for _, name := range []string{"behind", "late"} {
		if missed[name] == 0 {
			f.Errorf("%s has missed nothing: retention did not work", name)
		}
	}
	for _, name := range []string{"tail", "middle", "mortal"} {
		if missed[name] > 0 {
			f.Errorf("%s has missed %d messages", name, missed[name])
		}
	}
}

// freed: orphans go by themselves, and when the categories go nothing is left.
func (f *fire) freed() {
	f.Helper()
	eventually(f.T, waitLimit, "no orphan is left", func() bool { return f.dangling()["orphan"] == 0 })
	for _, category := range []string{fireBrief, fireChanged, fireLasting} {
		ok(f, nil, "category", "delete", category, "--server", f.control)
	}
	client := f.s3.Client()
	eventually(f.T, waitLimit, "nothing is left", func() bool {
		for object := range client.ListObjectsIter(f.Context(), f.s3.Bucket, minio.ListObjectsOptions{Prefix: "blobs/", Recursive: true}) {
			if object.Err != nil {
				f.Fatal(object.Err)
			}
			return false
		}
		return true
	})
	if left := f.dangling(); len(left) > 0 {
		f.Errorf("dangling in the end: %v", left)
	}
}

// dangling is what scribe inspect finds, by kind: no damage.
func (f *fire) dangling() map[string]int {
	f.Helper()
	cmd := program.Command(f.Context(), program.Binary(), "inspect", "dangling", "--server", f.control)
	cmd.Env = append(cmd.Environ(), f.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		f.Errorf("invariant 8: inspect dangling: %v\n%s%s", err, out, stderr.Bytes())
	}
	found := map[string]int{}
	for line := range bytes.Lines(out) {
		var v struct{ Kind string }
		if err := json.Unmarshal(line, &v); err != nil {
			f.Fatal(err)
		}
		found[v.Kind]++
	}
	return found
}
