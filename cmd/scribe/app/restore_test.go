package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/backup"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

// backupSite is a machine with a cell, whose blobs outlive the processes that open them.
type backupSite struct {
	config Config
	disk   *vfs.MemFS
	store  *memory.Store
}

func (s *backupSite) host() Host {
	return Host{FS: s.disk, OpenBlobs: func(context.Context, Config) (blob.Store, error) { return keptOpen{s.store}, nil }}
}

// newBackupSite runs a cell, makes a backup in the middle, and stops the cell. It returns the backup's name.
func newBackupSite(t *testing.T) (*backupSite, string) {
	t.Helper()
	s := &backupSite{config: DefaultConfig(), disk: vfs.NewCrashableMem(), store: memory.New()}
	s.config.Data, s.config.Listen, s.config.Blobs.Path = "/data", "127.0.0.1:0", "/blobs"
	a := startCellOn(t, s.config, s.host())
	fill(t, a)
	made, err := rpc.NewBackupClient(rpc.Default(), a.URL()).CreateBackup(t.Context(), &scribev1.CreateBackupRequest{})
	if err != nil || made.GetBytes() == 0 || made.GetStoredBytes() == 0 || made.GetCreated() == 0 {
		t.Fatalf("%v, %v", made, err)
	}
	if _, err := s.disk.Stat("/data/" + backupWork); err == nil {
		t.Error("a backup leaves files in the data folder")
	}
	write := rpc.NewWriteClient(rpc.Default(), a.URL())
	for i := uint64(10); i < 15; i++ {
		r, err := write.Write(t.Context(), &scribev1.WriteRequest{Frames: frameOf(t, "once", 0, 5, i, fmt.Sprint("once ", i)), Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
		if err != nil || r.GetResults()[0].GetError() != nil {
			t.Fatalf("%v, %v", r, err)
		}
	}
	stopCell(t, a)
	return s, made.GetName()
}

// TestRestoreAtEachStep: a restore that is cut off anywhere, with a loss of power, leaves a folder that is complete or none, and succeeds when it is run again. What came after the backup is there.
func TestRestoreAtEachStep(t *testing.T) {
	site, name := newBackupSite(t)
	for _, cut := range []string{"fetch", "logs", "finish logs", "categories", "findings", "rename", "clean", "none"} {
		t.Run(cut, func(t *testing.T) {
			s := &backupSite{config: site.config, disk: vfs.NewCrashableMem(), store: cloneStore(t, site.store)}
			o := RecoverOptions{To: "/restored/data", Backup: LatestBackup, Host: s.host(), Step: func(step string) error {
				if step == cut {
					return errCut
				}
				return nil
			}}
			done, err := Recover(t.Context(), s.config, o)
			if cut == "none" {
				if err != nil || !done.Whole() || done.Backup.Name != name || done.Copied == 0 || done.Copied == done.Records {
					t.Fatalf("%+v, %v", done, err)
				}
			} else if !errors.Is(err, errCut) {
				t.Fatalf("cut: %v", err)
			}
			s.disk = s.disk.CrashClone(vfs.CrashCloneCfg{})
			o.Host, o.Step = s.host(), nil
			if _, err := Recover(t.Context(), s.config, o); err != nil && (cut != "clean" && cut != "none" || !errors.Is(err, ErrExists)) {
				t.Fatalf("again: %v", err)
			}
			s.disk = s.disk.CrashClone(vfs.CrashCloneCfg{})
			s.config.Data = o.To
			a := startCellOn(t, s.config, s.host())
			defer stopCell(t, a)
			checkCellAt(t, a, 15)
			if _, err := a.parts.control.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "deleted"}); err == nil {
				t.Error("the deleted category is back")
			}
		})
	}
}

// TestRestoreRefuses: a backup is restored with the payloads of its cell only, not to a moment before it, and not when it is damaged; nothing is left then.
func TestRestoreRefuses(t *testing.T) {
	site, name := newBackupSite(t)
	try := func(store *memory.Store, o RecoverOptions) error {
		s := &backupSite{config: site.config, disk: vfs.NewCrashableMem(), store: store}
		o.To, o.Host = "/restored/data", s.host()
		_, err := Recover(t.Context(), s.config, o)
		if _, serr := s.disk.Stat(o.To); serr == nil {
			t.Errorf("%+v: there is something, after %v", o, err)
		}
		return err
	}
	other := cloneStore(t, site.store)
	content, err := blob.EncodeIdentity("OTHERAAAAAAAAAAAAAAAAAAAAA")
	if err = errors.Join(err, other.Delete(t.Context(), blob.IdentityKey), other.Put(t.Context(), blob.IdentityKey, content)); err != nil {
		t.Fatal(err)
	}
	if err := try(other, RecoverOptions{Backup: name}); !errors.Is(err, ErrWrongBackup) {
		t.Errorf("the payloads of another cell: %v", err)
	}
	if err := try(other, RecoverOptions{Backup: LatestBackup}); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("the newest backup of another cell: %v", err)
	}
	if err := try(site.store, RecoverOptions{Backup: name, Until: time.Now().Add(-time.Hour)}); !errors.Is(err, ErrWrongBackup) {
		t.Errorf("to a moment before it: %v", err)
	}
	if err := try(site.store, RecoverOptions{Backup: "none"}); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("no such backup: %v", err)
	}
	damaged := cloneStore(t, site.store)
	for info, err := range damaged.List(t.Context(), "backup/file/") {
		if err = errors.Join(err, damaged.Delete(t.Context(), info.Key)); err != nil {
			t.Fatal(err)
		}
		break
	}
	if err := try(damaged, RecoverOptions{Backup: name}); !errors.Is(err, backup.ErrDamaged) {
		t.Errorf("a file is missing: %v", err)
	}
}

// TestBackupSchedule: a backup is made when the newest one in the store is old enough, whoever made it, and old ones go then.
func TestBackupSchedule(t *testing.T) {
	var ahead atomic.Int64
	s := &backupSite{config: DefaultConfig(), disk: vfs.NewCrashableMem(), store: memory.New()}
	s.config.Data, s.config.Listen, s.config.Blobs.Path = "/data", "127.0.0.1:0", "/blobs"
	host := s.host()
	host.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	a := startCellOn(t, s.config, host)
	defer stopCell(t, a)
	m := a.parts.backups
	a.cfg.Backup.Every, a.cfg.Backup.Keep = time.Hour, 2 // its own schedule was off when it started
	made := func() (names []string) {
		all, err := backup.New(s.store, backup.Options{}).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			names = append(names, i.Name)
		}
		return names
	}
	var last []string
	for round := range 4 {
		due, err := m.makeDue(t.Context())
		now := made()
		if err != nil || due != time.Hour || len(now) != min(round+1, 2) || round > 0 && slices.Equal(now, last) {
			t.Fatalf("round %d: due in %v, %v; there are %v, were %v", round, due, err, now, last)
		}
		last = now
		if due, err = m.makeDue(t.Context()); err != nil || due <= 0 || due > time.Hour || !slices.Equal(made(), last) {
			t.Fatalf("round %d, again: due in %v, %v; there are %v", round, due, err, made())
		}
		ahead.Add(int64(61 * time.Minute))
	}
}

// TestBackupConfig: where backups are kept, and what is refused.
func TestBackupConfig(t *testing.T) {
	for to, want := range map[string]string{
		"": "s3 http://s3:9000 scribe p", "/mnt/backups": "file /mnt/backups", "s3://other/a/b": "s3 http://s3:9000 other a/b",
		"s3://other?endpoint=https://far&region=eu": "s3 https://far other ", "ftp://x": "!want a folder", "s3://": "!want s3://BUCKET", "s3://b?x=y": "!x is not known",
	} {
		c := DefaultConfig()
		c.Blobs.Kind, c.Blobs.S3.Endpoint, c.Blobs.S3.Bucket, c.Blobs.S3.Prefix, c.Backup.To = "s3", "http://s3:9000", "scribe", "p", to
		got, err := c.BackupBlobs()
		text := fmt.Sprint(got.Blobs.Kind, " ", got.Blobs.Path)
		if got.Blobs.Kind == "s3" {
			text = fmt.Sprintf("s3 %s %s %s", got.Blobs.S3.Endpoint, got.Blobs.S3.Bucket, got.Blobs.S3.Prefix)
		}
		if wrong, refused := strings.CutPrefix(want, "!"); refused != (err != nil) || refused && !strings.Contains(err.Error(), wrong) || !refused && text != want {
			t.Errorf("%q: %s, %v; want %s", to, text, err, want)
		}
	}
	c := DefaultConfig()
	c.Backup.To = "s3://bucket"
	if _, err := c.BackupBlobs(); err == nil || !strings.Contains(err.Error(), "endpoint") {
		t.Errorf("a bucket without an endpoint: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"both roles":           func(c *Config) { c.Roles, c.Metalog = []Role{ControlPlane, Batcher}, "http://h:1" },
		"a minute":             func(c *Config) { c.Backup.Every = time.Second },
		"no store of payloads": func(c *Config) { c.Roles = []Role{ControlPlane, Metalog} },
		"want a folder":        func(c *Config) { c.Backup.To = "ftp://x" },
		"want 1 to 10000":      func(c *Config) { c.Backup.Keep = -1 },
		"nothing at all":       func(*Config) {},
	} {
		c := DefaultConfig()
		c.Insecure, c.Backup.Every = true, time.Hour
		change(&c)
		if err := c.Validate(); name == "nothing at all" && err != nil || name != "nothing at all" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
