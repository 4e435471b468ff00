package s3

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func valid() Config {
	cfg := DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.AccessKey, cfg.SecretKey = "s3.example.com", "bucket", "key", "secret"
	return cfg
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"plain":      func(*Config) {},
		"port":       func(c *Config) { c.Endpoint = "127.0.0.1:9000" },
		"localhost":  func(c *Config) { c.Endpoint = "localhost:9000" },
		"ipv6":       func(c *Config) { c.Endpoint = "[::1]:9000" },
		"prefix":     func(c *Config) { c.Prefix = "a/b" },
		"keys of S3": func(c *Config) { c.Encryption = EncryptS3 },
		"a KMS key":  func(c *Config) { c.Encryption, c.KMSKey = EncryptKMS, "arn:aws:kms:eu-1:1:key/a" },
		"iam":        func(c *Config) { c.AccessKey, c.SecretKey, c.IAM = "", "", true },
	} {
		cfg := valid()
		change(&cfg)
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s, err := New(cfg)
		if err != nil {
			t.Errorf("%s: New: %v", name, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for field, change := range map[string]func(*Config){
		"endpoint":              func(c *Config) { c.Endpoint = "" },
		"scheme":                func(c *Config) { c.Endpoint = "https://s3.example.com" },
		"nothing else":          func(c *Config) { c.Endpoint = "s3.example.com/path" },
		"port":                  func(c *Config) { c.Endpoint = "s3.example.com:0" },
		"host":                  func(c *Config) { c.Endpoint = "-x-" },
		"bucket":                func(c *Config) { c.Bucket = "Not A Bucket" },
		"prefix":                func(c *Config) { c.Prefix = "a/" },
		"region":                func(c *Config) { c.Region = "us east" },
		"access key":            func(c *Config) { c.AccessKey = "" },
		"secret key":            func(c *Config) { c.SecretKey = "" },
		"credentials":           func(c *Config) { c.IAM = true },
		"encryption":            func(c *Config) { c.Encryption = "rot13" },
		"encryption is not kms": func(c *Config) { c.Encryption, c.KMSKey = EncryptS3, "key" },
		"KMS key":               func(c *Config) { c.Encryption, c.KMSKey = EncryptKMS, "a\r\nkey" },
		"max attempts":          func(c *Config) { c.MaxAttempts = 0 },
		"attempt timeout":       func(c *Config) { c.AttemptTimeout = time.Millisecond },
		"max connections":       func(c *Config) { c.MaxConnections = 0 },
	} {
		cfg := valid()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: New succeeds", field)
		}
	}
}

// TestConfigNamesEveryFault: the zero Config lacks nearly everything.
func TestConfigNamesEveryFault(t *testing.T) {
	err := (&Config{}).Validate()
	for _, field := range []string{"endpoint", "bucket", "access key", "secret key", "max attempts", "attempt timeout", "max connections"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}

func TestPartsReader(t *testing.T) {
	parts := [][]byte{nil, []byte("abc"), {}, []byte("d"), []byte("efghi"), nil}
	want := bytes.Join(parts, nil)
	if err := iotest.TestReader(struct{ io.Reader }{&partsReader{parts: parts}}, want); err != nil {
		t.Error(err)
	}
	r := &partsReader{parts: parts}
	for range 3 {
		if _, err := io.CopyN(io.Discard, r, 5); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(iotest.OneByteReader(r)); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("after a rewind: %q, %v", got, err)
		}
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Seek(1, io.SeekStart); err == nil {
		t.Error("Seek to the middle succeeds")
	}
	if got, err := io.ReadAll(&partsReader{}); err != nil || len(got) != 0 {
		t.Errorf("no parts: %q, %v", got, err)
	}
}
