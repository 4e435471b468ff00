package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"

	"scribe/internal/base/entropy"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/file"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/s3"
)

// OpenKeys returns the keys that lie in a store of a configuration, for its encrypted categories. The name is that of their source of random numbers.
func OpenKeys(c *Config, store blob.Store, host Host, log *slog.Logger, name string) (*encryption.Keys, error) {
	host = host.withDefaults()
	wrapper, err := host.openWrapper(c, name)
	if err != nil {
		return nil, err
	}
	return encryption.NewKeys(encryption.Config{Store: store, Wrapper: wrapper, Logger: log, Clock: host.Now, Random: host.Random.Named(name)})
}

// openWrapper returns what wraps keys; nil if the configuration names none.
func (h Host) openWrapper(c *Config, name string) (encryption.Wrapper, error) {
	if c.Blobs.KeyFile == "" {
		return nil, nil
	}
	return h.OpenWrapper(c.Blobs.KeyFile, h.Random.Named("key file of "+name))
}

// OpenWrapper returns the keys of a file, which it checks.
func OpenWrapper(path string, random *entropy.Source) (encryption.Wrapper, error) {
	file := encryption.KeyFile{Path: path, Random: random}
	if err := file.Check(); err != nil {
		return nil, fmt.Errorf("--encryption-key-file: %w", err)
	}
	return file, nil
}

// openKeys opens the keys of a store, and closes them before the store.
func (a *App) openKeys(cfg *Config, store blob.Store, name string) (*encryption.Keys, error) {
	keys, err := OpenKeys(cfg, store, a.opts.Host, a.log, name)
	if err == nil {
		a.onStop(name, func(context.Context) error { keys.Close(); return nil })
	}
	return keys, err
}

// regionKeys returns the keys of a region's store, "" for this cell's.
func (a *App) regionKeys(region string) (layout.Decrypter, error) {
	keys, ok := a.parts.keys[region]
	if !ok {
		return nil, fmt.Errorf("no store of region %q here", region)
	}
	return keys, nil
}

// OpenBlobs opens the store of payloads that a configuration names.
func OpenBlobs(ctx context.Context, c Config) (blob.Store, error) {
	if c.Blobs.Kind == "file" {
		store, err := file.New(c.BlobPath(), file.Options{})
		if err != nil {
			return nil, err
		}
		return store, nil
	}
	endpoint, err := url.Parse(c.Blobs.S3.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("blobs.s3.endpoint: %w", err)
	}
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Secure = endpoint.Host, endpoint.Scheme == "https"
	cfg.Bucket, cfg.Prefix, cfg.Region = c.Blobs.S3.Bucket, c.Blobs.S3.Prefix, c.Blobs.S3.Region
	cfg.AccessKey, cfg.SecretKey, cfg.IAM = c.Blobs.S3.AccessKey, c.Blobs.S3.SecretKey, c.Blobs.S3.IAM
	cfg.Encryption, cfg.KMSKey = s3.Encryption(c.Blobs.S3.Encryption), c.Blobs.S3.KMSKey
	store, err := s3.New(cfg)
	if err == nil && c.Blobs.S3.CreateBucket {
		err = store.CreateBucket(ctx)
	} else if err == nil {
		err = store.Check(ctx)
	}
	if err != nil {
		return nil, err
	}
	return store, nil
}
