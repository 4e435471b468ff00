package s3

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"scribe/storage/blob"
	"scribe/storage/blob/internal/gate"
)

// Store is a blob.Store in a bucket.
type Store struct {
	*gate.Store
	gate        gate.Gate
	client      *minio.Core
	transport   *attemptTransport
	bucket      string
	region      string
	prefix      string             // of the names of objects: empty, or with a slash at the end
	encryption  encrypt.ServerSide // nil leaves it to the bucket
	maxAttempts int

	// unconditional is set when the store can't refuse an existing key.
	unconditional atomic.Bool
}

// markName is the metadata by which a Put recognises its own object.
const markName = "Scribe-Put"

// New returns a store for the bucket that cfg names. It sends no request; see [Store.Check].
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base := cfg.Transport
	if base == nil {
		base = defaultTransport(&cfg)
	}
	transport := &attemptTransport{base: base, timeout: cfg.AttemptTimeout}
	creds := credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, cfg.SessionToken)
	if cfg.IAM {
		creds = credentials.NewIAM("")
	}
	lookup := minio.BucketLookupAuto
	if cfg.PathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.NewCore(cfg.Endpoint, &minio.Options{
		Creds:        creds,
		Secure:       cfg.Secure,
		Transport:    transport,
		Region:       cfg.Region,
		BucketLookup: lookup,
		MaxRetries:   cfg.MaxAttempts, // minio-go counts attempts
		// Checksums in headers need it; see Put.
		TrailingHeaders: true,
	})
	if err != nil {
		return nil, fmt.Errorf("s3: make a client for %s: %w", cfg.Endpoint, err)
	}
	s := &Store{client: client, transport: transport, bucket: cfg.Bucket, region: cfg.Region, maxAttempts: cfg.MaxAttempts}
	s.Store = gate.NewStore(&s.gate, gate.Engine{
		Put: s.putConditional, ReadAt: s.readRange, Stat: s.statObject, List: s.listObjects, Delete: s.removeObject,
		Release: transport.CloseIdleConnections,
	})
	if cfg.Prefix != "" {
		s.prefix = cfg.Prefix + "/"
	}
	switch cfg.Encryption {
	case EncryptS3:
		s.encryption = encrypt.NewSSE()
	case EncryptKMS:
		if s.encryption, err = encrypt.NewSSEKMS(cfg.KMSKey, nil); err != nil {
			return nil, fmt.Errorf("s3: encrypt with key %q: %w", cfg.KMSKey, err)
		}
	}
	s.unconditional.Store(cfg.UnconditionalPut)
	return s, nil
}

func defaultTransport(cfg *Config) *http.Transport {
	return &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		// One host; HTTP/1.1, since bodies are large.
		MaxIdleConns:        cfg.MaxConnections,
		MaxIdleConnsPerHost: cfg.MaxConnections,
		IdleConnTimeout:     time.Minute,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}
}

// Check reports whether the bucket can be reached with the credentials. It serves readiness checks and gives a clear error at
// start.
func (s *Store) Check(ctx context.Context) error {
	if err := s.gate.Enter(); err != nil {
		return fmt.Errorf("check bucket %s: %w", s.bucket, err)
	}
	defer s.gate.Leave()
	return s.checkBucket(ctx)
}

func (s *Store) checkBucket(ctx context.Context) error {
	ok, err := s.client.BucketExists(ctx, s.bucket)
	if err == nil && !ok {
		err = ErrNoBucket
	}
	if err != nil {
		return fmt.Errorf("check bucket %s: %w", s.bucket, mapError(ctx, err))
	}
	return nil
}

// CreateBucket creates the bucket, unless it exists.
func (s *Store) CreateBucket(ctx context.Context) error {
	if err := s.gate.Enter(); err != nil {
		return fmt.Errorf("create bucket %s: %w", s.bucket, err)
	}
	defer s.gate.Leave()
	if err := s.checkBucket(ctx); !errors.Is(err, ErrNoBucket) {
		return err
	}
	err := s.client.MakeBucket(ctx, s.bucket, minio.MakeBucketOptions{Region: s.region})
	// Another process may have created it first.
	if code := answerCode(err); err != nil && code != minio.BucketAlreadyOwnedByYou && code != minio.BucketAlreadyExists {
		return fmt.Errorf("create bucket %s: %w", s.bucket, mapError(ctx, err))
	}
	return s.checkBucket(ctx)
}

func (s *Store) putConditional(ctx context.Context, key string, parts [][]byte) error {
	mark := rand.Text()
	if !s.unconditional.Load() {
		err := s.putObject(ctx, key, parts, mark, true)
		switch code := answerCode(err); {
		case code == minio.NotImplemented:
			s.unconditional.Store(true)
		// A conflict means that another writer, or an earlier attempt of this one, has not finished.
		case errors.Is(err, blob.ErrExists), code == minio.Conflict, code == "ConditionalRequestConflict":
			return s.resolveConflict(ctx, key, mark, err)
		default:
			return err
		}
	}
	if _, err := s.statObject(ctx, key); !errors.Is(err, blob.ErrNotFound) {
		if err == nil {
			err = blob.ErrExists
		}
		return err
	}
	return s.putObject(ctx, key, parts, mark, false)
}

// resolveConflict decides, after Put was refused because the key exists, whether the object is this Put's own: then an earlier
// attempt succeeded and its answer was lost.
func (s *Store) resolveConflict(ctx context.Context, key, mark string, refused error) error {
	info, err := s.client.StatObject(ctx, s.bucket, s.prefix+key, minio.StatObjectOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("look whose object it is: %w, after %w", mapError(ctx, err), refused)
	case info.UserMetadata[markName] == mark:
		return nil
	case errors.Is(refused, blob.ErrExists):
		return refused
	default:
		return fmt.Errorf("%w: %w", blob.ErrExists, refused)
	}
}

func (s *Store) putObject(ctx context.Context, key string, parts [][]byte, mark string, conditional bool) error {
	size, crc := sizeAndCRC(parts)
	opts := minio.PutObjectOptions{
		ContentType:      "application/octet-stream",
		DisableMultipart: true,
		// The checksum of the whole is known before the first byte is sent, so it goes into a header and the body stays
		// unchanged: neither signed nor framed in chunks, which would cost a SHA-256 and a copy.
		DisableContentSha256: true,
		ServerSideEncryption: s.encryption,
		UserMetadata: map[string]string{
			markName:                mark,
			"x-amz-checksum-crc32c": base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc)),
		},
	}
	if conditional {
		opts.SetMatchETagExcept("*")
	}
	_, err := s.client.Client.PutObject(ctx, s.bucket, s.prefix+key, &partsReader{parts: parts}, size, opts)
	return mapError(ctx, err)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sizeAndCRC(parts [][]byte) (size int64, crc uint32) {
	for _, p := range parts {
		size += int64(len(p))
		crc = crc32.Update(crc, castagnoli, p)
	}
	return size, crc
}

func (s *Store) readRange(ctx context.Context, key string, dst []byte, off int64) error {
	if off < 0 || off > math.MaxInt64-int64(len(dst)) {
		return blob.ErrRange
	}
	if len(dst) == 0 { // no range can ask for it
		info, err := s.statObject(ctx, key)
		if err == nil && off > info.Size {
			err = fmt.Errorf("%w of %d bytes", blob.ErrRange, info.Size)
		}
		return err
	}
	// minio-go retries failed requests, but not answers that break off.
	for attempt := 1; ; attempt++ {
		n, err := s.readOnce(ctx, key, dst, off)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errBroken) || attempt >= s.maxAttempts {
			return mapError(ctx, err)
		}
		dst, off = dst[n:], off+int64(n)
	}
}

// errBroken means that an answer ended before it was complete.
var errBroken = errors.New("s3: the answer broke off")

// readOnce also returns the number of bytes read with errBroken.
func (s *Store) readOnce(ctx context.Context, key string, dst []byte, off int64) (n int, err error) {
	var opts minio.GetObjectOptions
	if err := opts.SetRange(off, off+int64(len(dst))-1); err != nil {
		return 0, err
	}
	body, info, header, err := s.client.GetObject(ctx, s.bucket, s.prefix+key, opts)
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	want := fmt.Sprintf("bytes %d-", off)
	switch got := header.Get("Content-Range"); {
	case got != "" && !strings.HasPrefix(got, want):
		return 0, fmt.Errorf("s3: asked for a range from %d on, the store answers %q", off, got)
	case got == "" && off != 0:
		return 0, errors.New("s3: the store answers a request for a range with the whole object")
	case info.Size >= 0 && info.Size < int64(len(dst)):
		return 0, fmt.Errorf("%w: %d bytes are left", blob.ErrRange, info.Size)
	}
	n, err = io.ReadFull(body, dst)
	if err != nil {
		return n, fmt.Errorf("%w after %d bytes: %w", errBroken, n, err)
	}
	return n, nil
}

func (s *Store) statObject(ctx context.Context, key string) (blob.Info, error) {
	info, err := s.client.StatObject(ctx, s.bucket, s.prefix+key, minio.StatObjectOptions{})
	if err = mapError(ctx, err); err != nil {
		// An answer to HEAD has no body that would tell a missing object from a missing bucket, and the difference matters.
		if errors.Is(err, blob.ErrNotFound) {
			if berr := s.checkBucket(ctx); berr != nil {
				return blob.Info{}, berr
			}
		}
		return blob.Info{}, err
	}
	return blob.Info{Key: key, Size: info.Size, Modified: info.LastModified}, nil
}

// listObjects skips objects whose names are not valid keys.
func (s *Store) listObjects(ctx context.Context, prefix string, yield func(blob.Info) error) error {
	last := ""
	for object := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{
		Prefix:     s.prefix + prefix,
		Recursive:  true,
		FetchOwner: new(bool),
	}) {
		if object.Err != nil {
			return mapError(ctx, object.Err)
		}
		key, ok := strings.CutPrefix(object.Key, s.prefix)
		if !ok || blob.CheckKey(key) != nil {
			continue
		}
		// Callers rely on the order: they stop at the first key that is too young for them.
		if key <= last {
			return fmt.Errorf("s3: the store lists %s after %s", key, last)
		}
		last = key
		if err := yield(blob.Info{Key: key, Size: object.Size, Modified: object.LastModified}); err != nil {
			return err
		}
	}
	return nil // also when the context ends
}

func (s *Store) removeObject(ctx context.Context, key string) error {
	return mapError(ctx, s.client.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{}))
}
