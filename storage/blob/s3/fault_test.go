package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"scribe/internal/testkit/s3test"
	"scribe/storage/blob"
	"scribe/storage/blob/s3"
)

// roundTripper is a transport with faults.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// base is a transport of the test's own, without connections that stay open.
func base(t *testing.T) *http.Transport {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// content is n bytes in which no two windows of 4 bytes are the same.
func content(n int) []byte {
	b := make([]byte, 0, n+4)
	for i := uint32(1); len(b) < n; i++ {
		b = append(b, byte(i), byte(i>>8), byte(i>>16), byte(i*7))
	}
	return b[:n]
}

func expect(t *testing.T, s *s3.Store, key string, want []byte) {
	t.Helper()
	info, err := s.Stat(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := s.ReadAt(t.Context(), key, got, 0); err != nil {
		t.Fatal(err)
	}
	if info.Size != int64(len(want)) || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that are not the %d that were put", key, info.Size, len(want))
	}
}

// TestLostAnswer: the first attempt stores the object and its answer is lost; the second is refused because the key exists. That is
// no failure.
func TestLostAnswer(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	cfg.MaxAttempts = 3
	tr := base(t)
	var puts atomic.Int32
	cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := tr.RoundTrip(r)
		if r.Method == http.MethodPut && puts.Add(1) == 1 && err == nil {
			_ = resp.Body.Close()
			return nil, errors.New("injected: connection lost")
		}
		return resp, err
	})
	s := open(t, cfg)
	data := content(100_000)
	if err := s.Put(t.Context(), "blobs/1h/a", data[:10], data[10:]); err != nil {
		t.Fatalf("Put: %v", err)
	}
	if puts.Load() != 2 {
		t.Errorf("%d attempts, want 2", puts.Load())
	}
	expect(t, s, "blobs/1h/a", data)
	// Another Put under the key is still refused.
	if err := s.Put(t.Context(), "blobs/1h/a", data); !errors.Is(err, blob.ErrExists) {
		t.Errorf("second Put: %v", err)
	}
}

// TestAttemptThatReadsOn: an attempt fails but its goroutine goes on reading the body, as net/http may. The next attempt must store the
// right bytes, and nobody may touch the parts after Put has returned.
func TestAttemptThatReadsOn(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	cfg.MaxAttempts = 4
	tr := base(t)
	var (
		puts    atomic.Int32
		wg      sync.WaitGroup
		stolen  atomic.Int64
		release = make(chan struct{})
	)
	cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodPut {
			return tr.RoundTrip(r)
		}
		switch puts.Add(1) {
		case 1, 2:
		case 3: // both attempts have ended: before RoundTrip returns, what they read is theirs
			close(release)
			fallthrough
		default:
			return tr.RoundTrip(r)
		}
		if _, err := io.CopyN(io.Discard, r.Body, 50_000); err != nil {
			return nil, err
		}
		wg.Go(func() {
			<-release
			n, _ := io.Copy(io.Discard, r.Body)
			stolen.Add(n)
		})
		return nil, errors.New("injected: connection lost")
	})
	s := open(t, cfg)
	data := content(400_000)
	parts := slices.Collect(slices.Chunk(slices.Clone(data), 30_000))
	if err := s.Put(t.Context(), "a", parts...); err != nil {
		t.Fatalf("Put: %v", err)
	}
	for _, p := range parts {
		clear(p) // the race detector watches
	}
	wg.Wait()
	if stolen.Load() != 0 {
		t.Errorf("attempts that had ended read %d bytes", stolen.Load())
	}
	expect(t, s, "a", data)
}

// TestCancelDuringUpload: the store accepts the connection and does not read. Put ends with its context, and the parts are the
// caller's.
func TestCancelDuringUpload(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 100_000)
		cancel()
		<-done
	}))
	defer server.Close()
	defer close(done)
	s := open(t, fakeConfig(server))
	data := content(20 << 20)
	if err := s.Put(ctx, "a", data); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v", err)
	}
	clear(data) // the race detector watches
}

// fakeConfig is for a server that only looks like a store.
func fakeConfig(server *httptest.Server) s3.Config {
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Secure, cfg.Region, cfg.Bucket = strings.TrimPrefix(server.URL, "http://"), false, "us-east-1", "bucket"
	cfg.AccessKey, cfg.SecretKey = "key", "secret"
	cfg.MaxAttempts = 2
	return cfg
}

// TestEarlyAnswer: the store refuses before it has read the body.
func TestEarlyAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	s := open(t, fakeConfig(server))
	data := content(20 << 20)
	if err := s.Put(t.Context(), "a", data); !errors.Is(err, blob.ErrDenied) && !errors.Is(err, blob.ErrUnavailable) {
		t.Errorf("Put: %v", err)
	}
	clear(data) // the race detector watches
}

// TestBrokenAnswer: answers to GET break off, and are continued where they did.
func TestBrokenAnswer(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	cfg.MaxAttempts = 4
	tr := base(t)
	var ranges []string
	cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := tr.RoundTrip(r)
		if err == nil && r.Method == http.MethodGet && r.Header.Get("Range") != "" {
			ranges = append(ranges, r.Header.Get("Range"))
			resp.Body = &cutBody{ReadCloser: resp.Body, left: 10_000}
		}
		return resp, err
	})
	s := open(t, cfg)
	data := content(100_000)
	if err := s.Put(t.Context(), "a", data); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 35_000)
	if err := s.ReadAt(t.Context(), "a", got, 1_000); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data[1_000:36_000]) {
		t.Error("wrong bytes")
	}
	want := []string{"bytes=1000-35999", "bytes=11000-35999", "bytes=21000-35999", "bytes=31000-35999"}
	if !slices.Equal(ranges, want) {
		t.Errorf("ranges %q, want %q", ranges, want)
	}
	// That are all the attempts that there are.
	ranges = nil
	if err := s.ReadAt(t.Context(), "a", make([]byte, 50_000), 0); !errors.Is(err, blob.ErrUnavailable) {
		t.Errorf("ReadAt that breaks off in every attempt: %v", err)
	}
	if len(ranges) != 4 {
		t.Errorf("%d attempts, want 4", len(ranges))
	}
}

type cutBody struct {
	io.ReadCloser
	left int
}

func (b *cutBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// TestChangedOnTheWay: the store checks the checksum that Put sends.
func TestChangedOnTheWay(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	tr := base(t)
	cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			all, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			all[500] ^= 1
			r = r.Clone(r.Context())
			r.Body = io.NopCloser(bytes.NewReader(all))
		}
		return tr.RoundTrip(r)
	})
	s := open(t, cfg)
	if err := s.Put(t.Context(), "a", content(1_000)); err == nil {
		t.Error("Put of bytes that were changed on the way succeeds")
	}
	if _, err := s.Stat(t.Context(), "a"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("Stat: %v", err)
	}
}

// TestRequest: the body is sent as it is, with its length and checksum, under the condition that the key is new.
func TestRequest(t *testing.T) {
	var (
		header http.Header
		path   string
		body   []byte
		length int64
	)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		header, path, length = r.Header.Clone(), r.URL.Path, r.ContentLength
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	cfg := fakeConfig(server)
	cfg.Prefix = "cells/1"
	s := open(t, cfg)
	if err := s.Put(t.Context(), "blobs/1h/a", []byte("1234"), nil, []byte("56789")); err != nil {
		t.Fatal(err)
	}
	if path != "/bucket/cells/1/blobs/1h/a" || string(body) != "123456789" || length != 9 {
		t.Errorf("%s: %d bytes %q", path, length, body)
	}
	for name, want := range map[string]string{
		"If-None-Match":         "*",
		"X-Amz-Content-Sha256":  "UNSIGNED-PAYLOAD",
		"X-Amz-Checksum-Crc32c": "4waSgw==", // the check value of CRC-32C
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if header.Get("X-Amz-Meta-Scribe-Put") == "" {
		t.Error("no mark")
	}
}

// answer is a server that answers everything with an error.
func answer(t *testing.T, status int, code string) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if code != "" && r.Method != http.MethodHead {
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as you wish</Message></Error>", code)
		}
	}))
	t.Cleanup(server.Close)
	return server, &requests
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		status int
		code   string
		want   error
	}{
		{http.StatusNotFound, "NoSuchKey", blob.ErrNotFound},
		{http.StatusNotFound, "NoSuchBucket", s3.ErrNoBucket},
		{http.StatusForbidden, "AccessDenied", blob.ErrDenied},
		{http.StatusForbidden, "InvalidAccessKeyId", blob.ErrDenied},
		{http.StatusForbidden, "SomethingNew", blob.ErrDenied},
		{http.StatusUnauthorized, "", blob.ErrDenied},
		{http.StatusRequestedRangeNotSatisfiable, "InvalidRange", blob.ErrRange},
		{http.StatusInsufficientStorage, "", blob.ErrNoSpace},
		{http.StatusConflict, "QuotaExceeded", blob.ErrNoSpace},
		{http.StatusServiceUnavailable, "SlowDown", blob.ErrUnavailable},
		{http.StatusInternalServerError, "InternalError", blob.ErrUnavailable},
		{http.StatusBadGateway, "", blob.ErrUnavailable},
		{http.StatusTooManyRequests, "", blob.ErrUnavailable},
	} {
		t.Run(fmt.Sprintf("%d-%s", test.status, test.code), func(t *testing.T) {
			server, _ := answer(t, test.status, test.code)
			cfg := fakeConfig(server)
			cfg.MaxAttempts = 1
			s := open(t, cfg)
			err := s.ReadAt(t.Context(), "a/b", make([]byte, 10), 5)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), "a/b") {
				t.Errorf("ReadAt: %v, want %v", err, test.want)
			}
			for _, other := range []error{blob.ErrNotFound, blob.ErrExists, blob.ErrRange, blob.ErrNoSpace, blob.ErrDenied, blob.ErrUnavailable, s3.ErrNoBucket} {
				if errors.Is(test.want, other) != errors.Is(err, other) {
					t.Errorf("ReadAt: %v matches %v", err, other)
				}
			}
		})
	}
}

func TestRetriesAreBounded(t *testing.T) {
	server, requests := answer(t, http.StatusServiceUnavailable, "SlowDown")
	cfg := fakeConfig(server)
	cfg.MaxAttempts = 3
	s := open(t, cfg)
	if err := s.Put(t.Context(), "a", []byte("x")); !errors.Is(err, blob.ErrUnavailable) {
		t.Errorf("Put: %v", err)
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
}

// TestAttemptTimeout: a store that takes connections and does not answer.
func TestAttemptTimeout(t *testing.T) {
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	defer server.Close()
	defer close(done)
	cfg := fakeConfig(server)
	cfg.AttemptTimeout = 100 * time.Millisecond
	tr := base(t)
	var attempts atomic.Int32 // as they are made: a busy server sees some only after they were given up, or never
	cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		attempts.Add(1)
		return tr.RoundTrip(r)
	})
	s := open(t, cfg)
	if err := s.ReadAt(t.Context(), "a", make([]byte, 1), 0); !errors.Is(err, blob.ErrUnavailable) {
		t.Errorf("ReadAt: %v", err)
	}
	if n := attempts.Load(); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
	// The caller's own deadline is told as what it is.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.ReadAt(ctx, "a", make([]byte, 1), 0); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, blob.ErrUnavailable) {
		t.Errorf("ReadAt with a deadline: %v", err)
	}
}

// TestUnreachable: the server is killed and comes back.
func TestUnreachable(t *testing.T) {
	server := s3test.Start(t)
	s := open(t, config(server))
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	for method, err := range map[string]error{
		"Put":    s.Put(t.Context(), "b", []byte("x")),
		"ReadAt": s.ReadAt(t.Context(), "a", make([]byte, 1), 0),
		"Delete": s.Delete(t.Context(), "a"),
		"Check":  s.Check(t.Context()),
	} {
		if !errors.Is(err, blob.ErrUnavailable) {
			t.Errorf("%s without a server: %v", method, err)
		}
	}
	server.Restart()
	expect(t, s, "a", []byte("x"))
}

// TestNoBucket: a bucket that is not there is not told as a blob that is not there.
func TestNoBucket(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	cfg.Bucket = "no-such-bucket"
	s := open(t, cfg)
	_, statErr := s.Stat(t.Context(), "a")
	var listErr error
	for _, err := range s.List(t.Context(), "") {
		listErr = err
	}
	for method, err := range map[string]error{
		"Put": s.Put(t.Context(), "a", []byte("x")), "ReadAt": s.ReadAt(t.Context(), "a", make([]byte, 1), 0), "Stat": statErr,
		"List": listErr, "Delete": s.Delete(t.Context(), "a"), "Check": s.Check(t.Context()),
	} {
		if !errors.Is(err, s3.ErrNoBucket) || errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%s: %v, want %v", method, err, s3.ErrNoBucket)
		}
	}
}

func TestCreateBucket(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	cfg.Bucket = "made-on-demand"
	s := open(t, cfg)
	for range 2 {
		if err := s.CreateBucket(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(t.Context(), "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestDenied(t *testing.T) {
	server := s3test.Start(t)
	cfg := config(server)
	cfg.SecretKey = "wrong"
	s := open(t, cfg)
	for method, err := range map[string]error{
		"Put": s.Put(t.Context(), "a", []byte("x")), "ReadAt": s.ReadAt(t.Context(), "a", make([]byte, 1), 0), "Check": s.Check(t.Context()),
	} {
		if !errors.Is(err, blob.ErrDenied) {
			t.Errorf("%s: %v, want %v", method, err, blob.ErrDenied)
		}
		if strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s tells the secret: %v", method, err)
		}
	}
}

// TestWithoutConditions: a store that does not know conditional writes, and one that ignores them.
func TestWithoutConditions(t *testing.T) {
	server := s3test.Start(t)
	for name, status := range map[string]int{"refuses": http.StatusNotImplemented, "ignores": 0} {
		t.Run(name, func(t *testing.T) {
			cfg := config(server)
			cfg.Prefix = name
			cfg.UnconditionalPut = status == 0
			tr := base(t)
			conditional := 0
			cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodPut || r.Header.Get("If-None-Match") == "" {
					return tr.RoundTrip(r)
				}
				conditional++
				return &http.Response{
					StatusCode: status, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1,
					Body: io.NopCloser(strings.NewReader("<Error><Code>NotImplemented</Code></Error>")),
				}, nil
			})
			s := open(t, cfg)
			for _, key := range []string{"a", "b"} {
				if err := s.Put(t.Context(), key, []byte("first")); err != nil {
					t.Fatal(err)
				}
				if err := s.Put(t.Context(), key, []byte("second")); !errors.Is(err, blob.ErrExists) {
					t.Errorf("second Put: %v", err)
				}
				expect(t, s, key, []byte("first"))
			}
			if want := min(status, 1); conditional != want {
				t.Errorf("%d conditional writes were tried, want %d", conditional, want)
			}
		})
	}
}

// TestSharedBucket: cells with different prefixes do not see each other, nor what else is in the bucket.
func TestSharedBucket(t *testing.T) {
	server := s3test.Start(t)
	for _, name := range []string{"cell/.hidden", "cell/a b", "other", "cell/sub/", "cell-2/x"} {
		content := "x"
		if strings.HasSuffix(name, "/") {
			content = ""
		}
		put := func() error {
			_, err := server.Client().PutObject(t.Context(), server.Bucket, name, strings.NewReader(content), int64(len(content)), minio.PutObjectOptions{})
			return err
		}
		// The server may answer a put of a folder, and close the connection, before it has read the end of the body.
		err := put()
		for tries := 1; err != nil && tries < 10; tries++ {
			err = put()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"cell", "cell/deep", "cell-2"} {
		cfg := config(server)
		cfg.Prefix = prefix
		if err := open(t, cfg).Put(t.Context(), "blobs/1", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string]string{
		"cell": "[blobs/1 deep/blobs/1]", "cell/deep": "[blobs/1]", "cell-2": "[blobs/1 x]",
		"": "[cell-2/blobs/1 cell-2/x cell/blobs/1 cell/deep/blobs/1 other]",
	} {
		cfg := config(server)
		cfg.Prefix = prefix
		var keys []string
		for info, err := range open(t, cfg).List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, info.Key)
		}
		if fmt.Sprint(keys) != want {
			t.Errorf("%q holds %v, want %s", prefix, keys, want)
		}
	}
}

// TestListOutOfOrder: a store that does not keep S3's order is found out.
func TestListOutOfOrder(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, `<ListBucketResult><Name>bucket</Name><KeyCount>2</KeyCount><IsTruncated>false</IsTruncated>`+
			`<Contents><Key>b</Key><Size>1</Size></Contents><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>`)
	}))
	defer server.Close()
	var last error
	for _, err := range open(t, fakeConfig(server)).List(t.Context(), "") {
		last = err
	}
	if last == nil || !strings.Contains(last.Error(), "a after b") {
		t.Errorf("List: %v", last)
	}
}

// TestIgnoredRange: a store that sends the whole object is not believed.
func TestIgnoredRange(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = w.Write(content(100))
	}))
	defer server.Close()
	s := open(t, fakeConfig(server))
	if err := s.ReadAt(t.Context(), "a", make([]byte, 10), 50); err == nil {
		t.Error("ReadAt takes the beginning of the object for its middle")
	}
}

// TestEncryption: every object is put with the header that has the store encrypt it, signed, and none that is read needs one.
func TestEncryption(t *testing.T) {
	server := s3test.Start(t)
	for name, tt := range map[string]struct {
		encryption   s3.Encryption
		key          string
		header, asks string
	}{
		"the bucket's": {"", "", "", ""},
		"the store's":  {s3.EncryptS3, "", "AES256", ""},
		"KMS":          {s3.EncryptKMS, "", "aws:kms", ""},
		"a key of KMS": {s3.EncryptKMS, "scribe", "aws:kms", "scribe"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(server)
			cfg.Prefix = strings.NewReplacer(" ", "-", "'", "").Replace(name)
			cfg.Encryption, cfg.KMSKey = tt.encryption, tt.key
			tr := base(t)
			var puts atomic.Int32
			cfg.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				header, asks := r.Header.Get("X-Amz-Server-Side-Encryption"), r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id")
				if r.Method == http.MethodPut {
					puts.Add(1)
					if header != tt.header || asks != tt.asks || header != "" && !strings.Contains(r.Header.Get("Authorization"), "x-amz-server-side-encryption") {
						t.Errorf("put with encryption %q and key %q, signed %s", header, asks, r.Header.Get("Authorization"))
					}
				} else if header != "" {
					t.Errorf("%s with encryption %q, which only what puts may say", r.Method, header)
				}
				return tr.RoundTrip(r)
			})
			s := open(t, cfg)
			if err := s.Put(t.Context(), "a", content(1_000)); err != nil {
				t.Fatal(err)
			}
			expect(t, s, "a", content(1_000))
			if puts.Load() != 1 {
				t.Errorf("%d puts", puts.Load())
			}
		})
	}
}
