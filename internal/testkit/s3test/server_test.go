package s3test_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/minio/minio-go/v7"

	"scribe/internal/testkit/s3test"
)

func TestPutAndGetAcrossARestart(t *testing.T) {
	server := s3test.Start(t)
	client := server.Client()
	want := bytes.Repeat([]byte("scribe "), 100_000)
	_, err := client.PutObject(t.Context(), server.Bucket, "a/b", bytes.NewReader(want), int64(len(want)), minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, client, server.Bucket, "a/b"); !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes that differ from the %d that were put", len(got), len(want))
	}

	server.Stop()
	if _, err := client.StatObject(t.Context(), server.Bucket, "a/b", minio.StatObjectOptions{}); err == nil {
		t.Fatal("a stopped server answered")
	}
	server.Restart()
	if got := get(t, client, server.Bucket, "a/b"); !bytes.Equal(got, want) {
		t.Fatalf("after the restart: got %d bytes that differ from the %d that were put", len(got), len(want))
	}
}

func TestServersAreApart(t *testing.T) {
	first, second := s3test.Start(t), s3test.Start(t)
	first.CreateBucket("only-first")
	exists, err := second.Client().BucketExists(t.Context(), "only-first")
	if err != nil {
		t.Fatal(err)
	}
	if exists {
		t.Error("a bucket of one server is in the other")
	}
}

func get(t *testing.T, client *minio.Client, bucket, key string) []byte {
	t.Helper()
	object, err := client.GetObject(t.Context(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = object.Close() }()
	data, err := io.ReadAll(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
