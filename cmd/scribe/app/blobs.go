package app

import (
	"context"
	"fmt"
	"net/url"

	"scribe/storage/blob"
	"scribe/storage/blob/file"
	"scribe/storage/blob/s3"
)

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
