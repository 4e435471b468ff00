package test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"scribe/internal/testkit/s3test"
	"scribe/test/netfault"
	"scribe/test/program"
)

// TestReadsFromATroubledStore: whatever the store does to the reads, consumers get everything as it was written, later. What it keeps
// damaged is an error that names the place, and is read as soon as it is whole again: nothing damaged was cached.
func TestReadsFromATroubledStore(t *testing.T) {
	s := s3test.Start(t)
	proxy := netfault.NewStore(t, "127.0.0.1:0", s.Endpoint, 7)
	env := []string{
		"SCRIBE_BLOBS=s3", "SCRIBE_S3_ENDPOINT=http://" + proxy.Endpoint(), "SCRIBE_S3_BUCKET=" + s.Bucket, "SCRIBE_S3_REGION=" + s.Region,
		"SCRIBE_S3_ACCESS_KEY=" + s.AccessKey, "SCRIBE_S3_SECRET_KEY=" + s.SecretKey, "SCRIBE_FLUSH_FLOOR=0s",
	}
	up := serve(t, env, "up", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	var input []byte
	noise := make([]byte, 120)
	for range 40_000 {
		_, _ = rand.Read(noise)
		input = append(base64.StdEncoding.AppendEncode(input, noise), '\n')
	}
	produce(t, &cell{write: up.URL}, "noise", input, "--batch-bytes", "128KiB")
	// A read proxy of its own for each fault, which has cached nothing.
	another := func(t *testing.T) *program.Process {
		return serve(t, env, "serve", "--roles", "readproxy", "--control", up.URL, "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	}
	read := func(p *program.Process) program.Result {
		return cli(t, nil, "tail", "noise", "--server", p.URL, "--from", "earliest", "--until-end", "-o", "raw")
	}
	for name, f := range map[string]netfault.StoreFaults{
		netfault.FaultSlowDown:  {SlowDown: 0.6},
		netfault.FaultCutBefore: {CutBefore: 0.6},
		netfault.FaultCutAnswer: {CutAnswer: 0.6},
		netfault.FaultFailAfter: {FailAfter: 0.6},
		netfault.FaultDelay:     {Delay: 1, MaxDelay: 400 * time.Millisecond},
		netfault.FaultDamage:    {Damage: 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			p := another(t)
			before := proxy.Counts()[name]
			proxy.Set(f)
			defer proxy.Set(netfault.StoreFaults{})
			r := read(p)
			for range 30 {
				damaged := name == netfault.FaultDamage && r.Code != 0  // both reads of a block came damaged: then it is an error
				spared := r.Code == 0 && proxy.Counts()[name] == before // there are few reads
				if !damaged && !spared {
					break
				}
				if spared {
					p = another(t)
				}
				r = read(p)
			}
			if r.Code != 0 {
				t.Fatalf("exit code %d\n%s", r.Code, r.Stderr)
			}
			sameBytes(t, name, r.Stdout, input)
			if proxy.Counts()[name] == before {
				t.Error("nothing happened to the reads")
			}
			if again := read(p); again.Code != 0 || !bytes.Equal(again.Stdout, input) {
				t.Errorf("what is cached is not what was written: exit code %d\n%s", again.Code, again.Stderr)
			}
		})
	}
	t.Run("kept damaged", func(t *testing.T) {
		c := s.Client()
		var key string
		var whole []byte
		for o := range c.ListObjects(t.Context(), s.Bucket, minio.ListObjectsOptions{Recursive: true}) {
			if !strings.HasPrefix(o.Key, "collector/") && o.Size > int64(len(whole)) {
				r, err := c.GetObject(t.Context(), s.Bucket, o.Key, minio.GetObjectOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if whole, err = io.ReadAll(r); err != nil {
					t.Fatal(err)
				}
				key = o.Key
			}
		}
		put := func(b []byte) {
			t.Helper()
			if _, err := c.PutObject(t.Context(), s.Bucket, key, bytes.NewReader(b), int64(len(b)), minio.PutObjectOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		p := another(t)
		damaged := bytes.Clone(whole)
		damaged[len(damaged)/3] ^= 1
		put(damaged)
		for range 2 {
			if r := read(p); r.Code == 0 || !strings.Contains(string(r.Stderr), key) || !bytes.HasPrefix(input, r.Stdout) {
				t.Fatalf("exit code %d, %d bytes, %s is not named:\n%s", r.Code, len(r.Stdout), key, r.Stderr)
			}
		}
		m, err := program.Scrape(t.Context(), p.URL)
		if err != nil || m[`scribe_readproxy_damaged_blocks_total{tier="store"}`] == 0 {
			t.Errorf("it is not counted, %v", err)
		}
		put(whole)
		r := read(p)
		if r.Code != 0 {
			t.Fatalf("exit code %d\n%s", r.Code, r.Stderr)
		}
		sameBytes(t, "repaired", r.Stdout, input)
	})
}
