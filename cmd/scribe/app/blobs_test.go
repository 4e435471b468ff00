package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"scribe/internal/testkit/s3test"
)

// TestBlobsWithCredentialsOfThePlatform: without keys, and with iam, requests are signed with what the platform's endpoint hands out, as to a pod with EKS Pod Identity or to a task of ECS.
func TestBlobsWithCredentialsOfThePlatform(t *testing.T) {
	s := s3test.Start(t)
	platform := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"AccessKeyId": s.AccessKey, "SecretAccessKey": s.SecretKey, "Expiration": time.Now().Add(time.Hour)})
	}))
	defer platform.Close()
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", platform.URL)
	c := cellConfig(t)
	c.Blobs = BlobConfig{Kind: "s3", S3: S3Config{Endpoint: "http://" + s.Endpoint, Bucket: s.Bucket, Region: s.Region, IAM: true}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	store, err := OpenBlobs(t.Context(), c) // asks the store for the bucket
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}

	c.Blobs.S3.SecretKey = "a key"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "blobs.s3.secret_key (--s3-secret-key): there are a key and --s3-iam") {
		t.Errorf("a key and iam: %v", err)
	}
	c.Blobs.S3.SecretKey, c.Blobs.S3.IAM = "", false
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--s3-iam uses credentials of the platform") {
		t.Errorf("neither keys nor iam: %v", err)
	}
	c.Blobs.S3.IAM = true
	if b := c.regionBlobs(&RegionConfig{Blobs: &BlobConfig{Kind: "s3"}}); !b.S3.IAM {
		t.Error("another region's store without keys does not use the credentials that this cell's uses")
	}
}
