package s3

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"scribe/storage/blob"
)

// Defaults and limits of Config.
const (
	DefaultMaxAttempts    = 5
	DefaultAttemptTimeout = time.Minute
	DefaultMaxConnections = 64

	maxAttempts       = 20
	minAttemptTimeout = 100 * time.Millisecond
	maxAttemptTimeout = time.Hour
	maxConnections    = 10_000
)

// Config describes the bucket and the access to it.
type Config struct {
	// Endpoint is the host or host:port of the store, without a scheme.
	Endpoint string
	// Secure selects TLS.
	Secure bool
	// Region is the region of the bucket. If it is empty the store is asked for it, which requires a permission.
	Region string
	// Bucket is the name of an existing bucket.
	Bucket string
	// Prefix, when not empty, is put in front of every key, with a slash between them, so that cells can share a bucket. It
	// follows the rules of a key.
	Prefix string
	// PathStyle puts the bucket into the path instead of the host name. It matters only for the hosts of large clouds; all other
	// hosts are always addressed that way.
	PathStyle bool

	// AccessKey and SecretKey are the credentials, with SessionToken when they are temporary.
	AccessKey    string
	SecretKey    string
	SessionToken string
	// IAM uses the credentials of the machine's role instead.
	IAM bool

	// Encryption has the store encrypt what is put, with keys of its own or of its key management service; empty leaves that to the bucket.
	Encryption Encryption
	// KMSKey names the key of EncryptKMS; empty means the one that the bucket, or the account, has for it.
	KMSKey string

	// UnconditionalPut is for stores that ignore the condition of a conditional write: Put checks whether the key exists, and
	// then writes.
	UnconditionalPut bool
	// MaxAttempts bounds how often a request is sent, 1 to 20.
	MaxAttempts int
	// AttemptTimeout bounds each attempt, from the first byte sent to the last one received, 100 ms to 1 h. The context of a call
	// bounds all attempts together.
	AttemptTimeout time.Duration
	// MaxConnections bounds the idle connections that are kept.
	MaxConnections int

	// Transport replaces the transport to the store, for private authorities or tests; nil means the default. It may use HTTP/1.1
	// or 2. Close closes its idle connections.
	Transport http.RoundTripper
}

// Encryption says with which keys a store encrypts objects at rest. Whoever may read them gets them decrypted.
type Encryption string

// Kinds of encryption: SSE-S3 and SSE-KMS in the words of S3.
const (
	EncryptS3  Encryption = "s3"
	EncryptKMS Encryption = "kms"
)

// DefaultConfig returns a Config that lacks Endpoint, Bucket and credentials.
func DefaultConfig() Config {
	return Config{
		Secure:         true,
		MaxAttempts:    DefaultMaxAttempts,
		AttemptTimeout: DefaultAttemptTimeout,
		MaxConnections: DefaultMaxConnections,
	}
}

// Validate reports every violation.
func (c *Config) Validate() error {
	var errs []error
	refuse := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("s3: config: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if reason := checkEndpoint(c.Endpoint); reason != "" {
		refuse("endpoint", "%q: %s", c.Endpoint, reason)
	}
	if err := s3utils.CheckValidBucketNameStrict(c.Bucket); err != nil {
		refuse("bucket", "%q: %v", c.Bucket, err)
	}
	if c.Prefix != "" {
		if err := blob.CheckKey(c.Prefix); err != nil {
			refuse("prefix", "%v", err)
		}
	}
	if strings.ContainsAny(c.Region, " /\t\r\n") {
		refuse("region", "%q is not the name of a region", c.Region)
	}
	c.checkCredentials(refuse)
	switch c.Encryption {
	case "", EncryptS3, EncryptKMS:
	default:
		refuse("encryption", "%q is neither empty nor %s nor %s", c.Encryption, EncryptS3, EncryptKMS)
	}
	switch {
	case c.KMSKey == "":
	case c.Encryption != EncryptKMS:
		refuse("KMS key", "%q is given, and encryption is not %s", c.KMSKey, EncryptKMS)
	case strings.ContainsFunc(c.KMSKey, func(r rune) bool { return r <= ' ' || r > '~' }):
		refuse("KMS key", "%q has a space or another character that no name of a key has", c.KMSKey)
	}
	if c.MaxAttempts < 1 || c.MaxAttempts > maxAttempts {
		refuse("max attempts", "%d is not in 1..%d", c.MaxAttempts, maxAttempts)
	}
	if c.AttemptTimeout < minAttemptTimeout || c.AttemptTimeout > maxAttemptTimeout {
		refuse("attempt timeout", "%v is not in %v..%v", c.AttemptTimeout, minAttemptTimeout, maxAttemptTimeout)
	}
	if c.MaxConnections < 1 || c.MaxConnections > maxConnections {
		refuse("max connections", "%d is not in 1..%d", c.MaxConnections, maxConnections)
	}
	return errors.Join(errs...)
}

func (c *Config) checkCredentials(refuse func(field, format string, args ...any)) {
	given := c.AccessKey != "" || c.SecretKey != "" || c.SessionToken != ""
	switch {
	case c.IAM && given:
		refuse("credentials", "there are both keys and the use of the machine's role (IAM)")
	case !c.IAM && c.AccessKey == "":
		refuse("access key", "is missing; set it, or use the machine's role (IAM)")
	}
	if !c.IAM && c.SecretKey == "" {
		refuse("secret key", "is missing; set it, or use the machine's role (IAM)")
	}
}

// checkEndpoint returns the violation of an endpoint, or "".
func checkEndpoint(endpoint string) string {
	switch {
	case endpoint == "":
		return "is missing: want host or host:port"
	case strings.Contains(endpoint, "://"):
		return "want host or host:port without a scheme; whether to use TLS is set beside it"
	case strings.ContainsAny(endpoint, "/?#@ \t\r\n"):
		return "want host or host:port and nothing else"
	}
	host := endpoint
	if h, port, err := net.SplitHostPort(endpoint); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "the port is not a number in 1..65535"
		}
		host = h
	}
	host = strings.Trim(host, "[]")
	if net.ParseIP(host) == nil && !s3utils.IsValidDomain(host) {
		return "the host is neither a name nor an address"
	}
	return ""
}
