package blob

import (
	"fmt"
	"strings"
)

// Limits of keys, in bytes. With a prefix of up to the same length a key stays below the 1,024 bytes of S3.
const (
	MaxKey     = 500
	MaxKeyPart = 200
)

// CheckKey reports whether key is valid: at most [MaxKey] bytes, in parts of 1 to [MaxKeyPart] bytes between single slashes. A
// part consists of ASCII letters, digits, '.', '_' and '-', and begins with a letter or a digit. So no part is hidden, "." or
// "..", and engines may use names that begin with a dot for themselves. The error wraps [ErrInvalidKey].
func CheckKey(key string) error {
	if reason := checkKey(key, false); reason != "" {
		return fmt.Errorf("%w %q: %s", ErrInvalidKey, excerpt(key), reason)
	}
	return nil
}

// CheckPrefix reports whether prefix may be listed: empty, or the beginning of a valid key. The error wraps [ErrInvalidKey].
func CheckPrefix(prefix string) error {
	if reason := checkKey(prefix, true); reason != "" {
		return fmt.Errorf("%w: prefix %q: %s", ErrInvalidKey, excerpt(prefix), reason)
	}
	return nil
}

// checkKey returns the violation of a key, or, when cut is set, of the beginning of a key. It returns "" for a valid one.
func checkKey(key string, cut bool) string {
	if len(key) > MaxKey {
		return fmt.Sprintf("%d bytes, the limit is %d", len(key), MaxKey)
	}
	parts := strings.Split(key, "/")
	for i, part := range parts {
		if part == "" {
			// A prefix may end where the next part begins, or be empty.
			if cut && i == len(parts)-1 {
				return ""
			}
			return "empty part: a key is made of parts between single slashes"
		}
		if len(part) > MaxKeyPart {
			return fmt.Sprintf("part %d has %d bytes, the limit is %d", i+1, len(part), MaxKeyPart)
		}
		if reason := checkPart(part); reason != "" {
			return reason
		}
	}
	return ""
}

func checkPart(part string) string {
	for i := range len(part) {
		c := part[i]
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		switch {
		case alphanumeric:
		case i == 0:
			return fmt.Sprintf("part %q begins with %q, not with a letter or a digit", excerpt(part), c)
		case c != '.' && c != '_' && c != '-':
			return fmt.Sprintf("byte %q in part %q: letters, digits, '.', '_' and '-' are allowed", c, excerpt(part))
		}
	}
	return ""
}

// excerpt shortens a key for an error.
func excerpt(key string) string {
	const limit = 80
	if len(key) > limit {
		return key[:limit] + "..."
	}
	return key
}
