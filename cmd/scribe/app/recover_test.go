package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/minio/minio-go/v7"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/cmd/scribe/recovery"
	"scribe/internal/format/record"
	"scribe/internal/testkit/s3test"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
)

// start runs a cell in this process.
func startCell(t *testing.T, c Config) *App {
	t.Helper()
	return startCellOn(t, c, Host{})
}

// startCellOn runs a cell of this process on a machine.
func startCellOn(t *testing.T, c Config, host Host) *App {
	t.Helper()
	a, err := Start(t.Context(), c, Options{Host: host, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func stopCell(t *testing.T, a *App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// cellConfig is a cell of every role on files.
func cellConfig(t *testing.T) Config {
	c := DefaultConfig()
	c.Data, c.Listen, c.Log.Level = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", "error"
	return c
}

// fill creates categories and writes to them, and deletes one.
func fill(t *testing.T, a *App) {
	t.Helper()
	control := rpc.NewControlClient(rpc.Default(), a.URL())
	write := rpc.NewWriteClient(rpc.Default(), a.URL())
	for name, c := range map[string]*scribev1.Category{
		"plain":   {Shards: 2, Retention: durationpb.New(50 * time.Hour), Owner: "team", QuotaBytesPerSecond: 1 << 40},
		"once":    {Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE},
		"deleted": {},
	} {
		c.Name = name
		if _, err := control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: c}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(10) {
		frames := slices.Concat(
			frameOf(t, "plain", uint32(i%2), 0, 0, fmt.Sprint("plain ", i)), frameOf(t, "once", 0, 5, i, fmt.Sprint("once ", i)),
			frameOf(t, "deleted", 0, 0, 0, "deleted"))
		r, err := write.Write(t.Context(), &scribev1.WriteRequest{Frames: frames, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
		if err != nil || slices.ContainsFunc(r.GetResults(), func(r *scribev1.FrameResult) bool { return r.GetError() != nil }) {
			t.Fatalf("%v, %v", r, err)
		}
	}
	if _, err := control.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "deleted"}); err != nil {
		t.Fatal(err)
	}
}

var errCut = errors.New("cut off here")

// TestRecoverAtEachStep: a recovery that is cut off anywhere leaves nothing under the name, and succeeds when it is run again.
func TestRecoverAtEachStep(t *testing.T) {
	c := cellConfig(t)
	a := startCell(t, c)
	fill(t, a)
	stopCell(t, a)
	var steps []string
	if _, err := Recover(t.Context(), c, RecoverOptions{To: filepath.Join(t.TempDir(), "to"), Step: func(name string) error {
		steps = append(steps, name)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if len(steps) < 6 {
		t.Fatalf("steps %v", steps)
	}
	for _, cut := range steps {
		t.Run(cut, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "to")
			_, err := Recover(t.Context(), c, RecoverOptions{To: to, Step: func(name string) error {
				if name == cut {
					return errCut
				}
				return nil
			}})
			if !errors.Is(err, errCut) {
				t.Fatalf("cut: %v", err)
			}
			if _, err := os.Stat(to); cut != "clean" && !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("there is something: %v", err)
			}
			done, err := Recover(t.Context(), c, RecoverOptions{To: to})
			if cut == "clean" {
				if !errors.Is(err, ErrExists) {
					t.Fatalf("again: %v", err)
				}
			} else if err != nil || !done.Whole() || done.Read != 0 && cut != "logs" {
				t.Fatalf("again: %+v, %v", done, err)
			}
			checkRecovered(t, c, to)
		})
	}
}

// checkRecovered starts a cell on the recovered folder and the blobs of before, and looks at the categories and logs.
func checkRecovered(t *testing.T, c Config, to string) {
	t.Helper()
	if c.Blobs.Kind == "file" { // what it writes is its own
		blobs := filepath.Join(t.TempDir(), "blobs")
		if err := os.CopyFS(blobs, os.DirFS(c.BlobPath())); err != nil {
			t.Fatal(err)
		}
		c.Blobs.Path = blobs
	}
	c.Data = to
	a := startCell(t, c)
	defer stopCell(t, a)
	checkCell(t, a)
}

// checkCell looks at the categories and logs of a cell that was recovered.
func checkCell(t *testing.T, a *App) {
	t.Helper()
	checkCellAt(t, a, 10)
}

// checkCellAt does so where the next message of the category once is next, which it writes after a repetition of the one before.
func checkCellAt(t *testing.T, a *App, next uint64) {
	t.Helper()
	control := rpc.NewControlClient(rpc.Default(), a.URL())
	got, err := control.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "plain"})
	if err != nil || got.GetCategory().GetRetention().AsDuration() != 50*time.Hour || got.GetCategory().GetShards() != 2 {
		t.Fatalf("plain: %v, %v", got, err)
	}
	states, err := a.parts.log.Shards(t.Context(), got.GetCategory().GetId())
	for began := time.Now(); errors.Is(err, metalog.ErrNotLeader) && time.Since(began) < time.Minute; { // a replica may not lead yet
		<-time.After(10 * time.Millisecond)
		states, err = a.parts.log.Shards(t.Context(), got.GetCategory().GetId())
	}
	if err != nil || len(states) != 2 || states[0].NextLSN+states[1].NextLSN != 12 {
		t.Errorf("logs of plain: %+v, %v", states, err)
	}
	write := rpc.NewWriteClient(rpc.Default(), a.URL())
	r, err := write.Write(t.Context(), &scribev1.WriteRequest{
		Frames: slices.Concat(frameOf(t, "once", 0, 5, next-1, fmt.Sprint("once ", next-1)), frameOf(t, "once", 0, 5, next, fmt.Sprint("once ", next))), Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED,
	})
	if err != nil || !r.GetResults()[0].GetDuplicate() || r.GetResults()[1].GetError() != nil || r.GetResults()[1].GetLsn() != next+1 {
		t.Errorf("once: %v, %v", r, err)
	}
}

// A loss of power at each step leaves a folder that is complete or none, and a recovery that succeeds is not lost with the power.
func TestRecoverOutlivesPowerLoss(t *testing.T) {
	store := memory.New()
	hostOf := func(fs vfs.FS, store *memory.Store) Host {
		return Host{FS: fs, OpenBlobs: func(context.Context, Config) (blob.Store, error) { return keptOpen{store}, nil }}
	}
	c := DefaultConfig()
	c.Data, c.Listen, c.Blobs.Path = "/data", "127.0.0.1:0", "/blobs"
	disk := vfs.NewCrashableMem()
	a := startCellOn(t, c, hostOf(disk, store))
	fill(t, a)
	stopCell(t, a)
	for _, cut := range []string{"logs", "finish logs", "categories", "findings", "rename", "clean"} {
		t.Run(cut, func(t *testing.T) {
			fs, store := vfs.NewCrashableMem(), cloneStore(t, store)
			if _, err := vfs.Clone(disk, fs, "/data/control", "/backup", vfs.CloneSync); err != nil {
				t.Fatal(err)
			}
			o := RecoverOptions{To: "/recovered/data", Catalog: "/backup", Host: hostOf(fs, store), Step: func(name string) error {
				if name == cut {
					return errCut
				}
				return nil
			}}
			if _, err := Recover(t.Context(), c, o); !errors.Is(err, errCut) {
				t.Fatalf("cut: %v", err)
			}
			fs = fs.CrashClone(vfs.CrashCloneCfg{})
			o.Host, o.Step = hostOf(fs, store), nil
			if _, err := Recover(t.Context(), c, o); err != nil && (cut != "clean" || !errors.Is(err, ErrExists)) {
				t.Fatalf("again: %v", err)
			}
			c := c
			c.Data = o.To
			a := startCellOn(t, c, hostOf(fs.CrashClone(vfs.CrashCloneCfg{}), store))
			defer stopCell(t, a)
			checkCell(t, a)
		})
	}
}

// keptOpen is a store that outlives those who open it.
type keptOpen struct{ *memory.Store }

func (keptOpen) Close() error { return nil }

// cloneStore copies a store.
func cloneStore(t *testing.T, from *memory.Store) *memory.Store {
	t.Helper()
	to := memory.New()
	for info, err := range from.List(t.Context(), "") {
		b := make([]byte, info.Size)
		if err == nil {
			err = errors.Join(from.ReadAt(t.Context(), info.Key, b, 0), to.Put(t.Context(), info.Key, b))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestRecoverCatalogs: a copy of the categories gives what blobs do not.
func TestRecoverCatalogs(t *testing.T) {
	c := cellConfig(t)
	a := startCell(t, c)
	fill(t, a)
	if _, err := a.parts.control.SetTenantQuota(t.Context(), &scribev1.SetTenantQuotaRequest{Quota: &scribev1.TenantQuota{Owner: "team", WriteBytesPerSecond: 1 << 40}}); err != nil {
		t.Fatal(err)
	}
	for a.parts.catalog.Tenants() == nil {
		<-time.After(time.Millisecond)
	}
	stopCell(t, a)
	for name, test := range map[string]struct {
		catalog string
		deleted int64
		dropped int
		whole   bool
	}{
		"none":              {"", 0, 0, false},
		"a copy":            {filepath.Join(c.Data, "catalog"), 0, 0, true},
		"the control store": {filepath.Join(c.Data, "control"), 0, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "to")
			var notes []string
			done, err := Recover(t.Context(), c, RecoverOptions{To: to, Catalog: test.catalog, Found: func(f recovery.Finding) error {
				if f.Kind == recovery.FindingCategory {
					notes = append(notes, f.Category)
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			owners := 0
			for _, cat := range done.Categories {
				if cat.GetOwner() == "team" && cat.GetQuotaBytesPerSecond() == 1<<40 {
					owners++
				}
			}
			if (owners == 1) != test.whole || len(done.Dropped) != test.dropped {
				t.Errorf("%v, dropped %v", done.Categories, done.Dropped)
			}
			if test.catalog == "" && !slices.Contains(notes, "plain") {
				t.Errorf("what was assumed of plain was not told: %v", notes)
			}
			checkRecovered(t, c, to)
			if test.whole {
				c := c
				c.Data, c.Blobs.Path = to, c.BlobPath()
				a := startCell(t, c)
				res, err := a.parts.control.ListTenantQuotas(t.Context(), &scribev1.ListTenantQuotasRequest{})
				if err != nil || len(res.GetQuotas()) != 1 || res.GetQuotas()[0].GetOwner() != "team" {
					t.Errorf("quotas of tenants: %v, %v", res, err)
				}
				stopCell(t, a)
			}
			if test.dropped > 0 {
				c := c
				c.Data, c.Blobs.Path = to, c.BlobPath()
				a := startCell(t, c)
				defer stopCell(t, a)
				states, err := a.parts.log.Tail(t.Context(), []record.ShardID{record.MakeShardID(done.Dropped[0].GetId(), 0, 1)})
				if err != nil || !states[0].Sealed {
					t.Errorf("the log of the deleted category: %+v, %v", states, err)
				}
			}
		})
	}
	if _, err := Recover(t.Context(), c, RecoverOptions{To: filepath.Join(t.TempDir(), "to"), Catalog: "no such file"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a catalog that is not there: %v", err)
	}
}

// TestRecoverRefuses: what exists is not touched, a dry run leaves nothing, and no blobs are an error of their own.
func TestRecoverRefuses(t *testing.T) {
	c := cellConfig(t)
	a := startCell(t, c)
	fill(t, a)
	stopCell(t, a)
	if _, err := Recover(t.Context(), c, RecoverOptions{To: c.Data}); !errors.Is(err, ErrExists) {
		t.Errorf("into the data folder of before: %v", err)
	}
	dir := t.TempDir()
	done, err := Recover(t.Context(), c, RecoverOptions{To: filepath.Join(dir, "to"), DryRun: true})
	if err != nil || done.Records == 0 {
		t.Errorf("a dry run: %+v, %v", done, err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("a dry run left %v, %v", names, err)
	}
	c.Blobs.Path = t.TempDir()
	if _, err := Recover(t.Context(), c, RecoverOptions{To: filepath.Join(dir, "to")}); !errors.Is(err, ErrNothing) {
		t.Errorf("without blobs: %v", err)
	}
	c.Blobs.Kind = "tape"
	if _, err := Recover(t.Context(), c, RecoverOptions{To: filepath.Join(dir, "to")}); err == nil || !strings.Contains(err.Error(), "blobs.kind") {
		t.Errorf("a store of no kind: %v", err)
	}
}

// TestRecoverFromS3: the same from a bucket, which holds other things, too.
func TestRecoverFromS3(t *testing.T) {
	s := s3test.Start(t)
	c := cellConfig(t)
	c.Blobs = BlobConfig{Kind: "s3", S3: S3Config{
		Endpoint: "http://" + s.Endpoint, Bucket: s.Bucket, Prefix: "cell", Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey,
	}}
	a := startCell(t, c)
	fill(t, a)
	stopCell(t, a)
	for _, key := range []string{"blobs/72h/not-ours", "cell/blobs/notes.txt", "cell/blobs/72h/what is this", "cell/other"} {
		if _, err := s.Client().PutObject(t.Context(), s.Bucket, key, strings.NewReader("x"), 1, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "to")
	done, err := Recover(t.Context(), c, RecoverOptions{To: to, Catalog: filepath.Join(c.Data, "catalog"), Workers: 4})
	if err != nil || !done.Whole() || done.Foreign != 1 || done.Void != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	checkRecovered(t, c, to)
}
