package access

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
)

// Keys of records (docs/format/access.md).
const (
	tokenKeys = "token/" // then the id
	grantKeys = "grant/" // then the principal or role
	keyKeys   = "key/"   // then the number of the ticket key in ten digits
)

// TokenKey is the key of a token's record.
func TokenKey(id string) string { return tokenKeys + id }

// GrantKey is the key of the record of a principal's grants.
func GrantKey(principal string) string { return grantKeys + principal }

// KeyKey is the key of a ticket key's record.
func KeyKey(id uint32) string { return fmt.Sprintf("%s%010d", keyKeys, id) }

// KeyBytes is the length of a ticket key's secret.
const KeyBytes = 32

var errRecord = errors.New("access: damaged record")

// EncodeRecord returns the stored form of a token, grant or ticket key.
func EncodeRecord(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// DecodeToken decodes the record of a token.
func DecodeToken(id string, value []byte) (*scribev1.AccessToken, error) {
	t := new(scribev1.AccessToken)
	if err := proto.Unmarshal(value, t); err != nil {
		return nil, fmt.Errorf("%w: token %s: %w", errRecord, id, err)
	}
	switch err := CheckPrincipal(t.GetPrincipal()); {
	case t.GetId() != id || len(id) != idLen:
		return nil, fmt.Errorf("%w: token %q is stored as %q", errRecord, t.GetId(), id)
	case len(t.GetHash()) != hashLen:
		return nil, fmt.Errorf("%w: token %s has a hash of %d bytes", errRecord, id, len(t.GetHash()))
	case err != nil:
		return nil, fmt.Errorf("%w: token %s: %w", errRecord, id, err)
	case len(t.GetRules()) > MaxTokenRules:
		return nil, fmt.Errorf("%w: token %s has %d rules", errRecord, id, len(t.GetRules()))
	case t.GetExpiresAt() < 0 || t.GetRevokedAt() < 0 || t.GetIssuedAt() < 0:
		return nil, fmt.Errorf("%w: token %s has a time before 1970", errRecord, id)
	}
	if _, err := ParseRules(t.GetRules(), false); err != nil {
		return nil, fmt.Errorf("%w: token %s: %w", errRecord, id, err)
	}
	return t, nil
}

// DecodeGrant decodes the record of a principal or role.
func DecodeGrant(name string, value []byte) (*scribev1.AccessGrant, error) {
	g := new(scribev1.AccessGrant)
	if err := proto.Unmarshal(value, g); err != nil {
		return nil, fmt.Errorf("%w: grants of %q: %w", errRecord, name, err)
	}
	if err := CheckPrincipal(name); err != nil || g.GetPrincipal() != name {
		return nil, fmt.Errorf("%w: grants of %q are stored as those of %q", errRecord, g.GetPrincipal(), name)
	}
	if n := len(g.GetRules()); n < 1 || n > MaxGrantRules {
		return nil, fmt.Errorf("%w: %q has %d rules", errRecord, name, n)
	}
	if _, err := ParseRules(g.GetRules(), !IsRole(name)); err != nil {
		return nil, fmt.Errorf("%w: grants of %q: %w", errRecord, name, err)
	}
	return g, nil
}

// DecodeKey decodes the record of a ticket key.
func DecodeKey(key string, value []byte) (*scribev1.TicketKey, error) {
	k := new(scribev1.TicketKey)
	if err := proto.Unmarshal(value, k); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errRecord, key, err)
	}
	if k.GetId() == 0 || KeyKey(k.GetId()) != key || len(k.GetSecret()) != KeyBytes || k.GetCreatedAt() < 0 {
		return nil, fmt.Errorf("%w: %s holds key %d of %d bytes", errRecord, key, k.GetId(), len(k.GetSecret()))
	}
	return k, nil
}

// put adds a record to a set that is being made. The error says that the record is damaged: it then denies what it allowed before,
// and all of its kind that it might have allowed.
func (s *Set) put(key string, value []byte) error {
	s.remove(key)
	s.closed = true
	switch {
	case strings.HasPrefix(key, tokenKeys):
		return s.putToken(strings.TrimPrefix(key, tokenKeys), value)
	case strings.HasPrefix(key, grantKeys):
		return s.putGrant(strings.TrimPrefix(key, grantKeys), value)
	case strings.HasPrefix(key, keyKeys):
		k, err := DecodeKey(key, value)
		if err != nil {
			return err // what it has signed is refused
		}
		setIn(&s.keys, k.GetId(), k.GetSecret())
		if k.GetId() > s.newest {
			s.newest, s.newestAt = k.GetId(), k.GetCreatedAt()
		}
	}
	return nil // a record of a newer program
}

func setIn[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[key] = value
}

func (s *Set) putToken(id string, value []byte) error {
	t, err := DecodeToken(id, value)
	if err != nil {
		setIn(&s.tokens, id, &tokenEntry{damaged: true})
		s.damaged++
		return err
	}
	e := &tokenEntry{principal: t.GetPrincipal(), hash: [hashLen]byte(t.GetHash()), expires: t.GetExpiresAt(), revoked: t.GetRevokedAt(), issued: t.GetIssuedAt()}
	if len(t.GetRules()) > 0 {
		if e.own, err = newRights(t.GetRules()); err == nil {
			s.limitBytes += e.own.limitBytes
		}
	}
	setIn(&s.tokens, id, e)
	return err // the rules were checked
}

func (s *Set) putGrant(name string, value []byte) error {
	var r *rights
	g, err := DecodeGrant(name, value)
	if err == nil {
		r, err = newRights(g.GetRules())
	}
	if err != nil {
		r = &rights{damaged: true}
		s.damaged++
	}
	s.rules += r.count
	s.limitBytes += r.limitBytes
	if IsRole(name) {
		setIn(&s.roles, name, r)
	} else {
		setIn(&s.principals, name, r)
	}
	return err
}

// remove takes a record out of a set that is being made.
func (s *Set) remove(key string) {
	forget := func(damaged bool) {
		if damaged {
			s.damaged--
		}
	}
	switch {
	case strings.HasPrefix(key, tokenKeys):
		id := strings.TrimPrefix(key, tokenKeys)
		if t := s.tokens[id]; t != nil {
			forget(t.damaged)
			if t.own != nil {
				s.limitBytes -= t.own.limitBytes
			}
			delete(s.tokens, id)
		}
	case strings.HasPrefix(key, grantKeys):
		name := strings.TrimPrefix(key, grantKeys)
		of := s.principals
		if IsRole(name) {
			of = s.roles
		}
		if r := of[name]; r != nil {
			forget(r.damaged)
			s.rules -= r.count
			s.limitBytes -= r.limitBytes
			delete(of, name)
		}
	case strings.HasPrefix(key, keyKeys):
		id, err := strconv.ParseUint(strings.TrimPrefix(key, keyKeys), 10, 32)
		if err == nil {
			delete(s.keys, uint32(id))
		}
	}
}

// NewSet returns the set of some records, by key, and the errors of those that are damaged.
func NewSet(records map[string][]byte) (*Set, []error) {
	s := new(Set).clone() // with a cache
	var damaged []error
	for key, value := range records {
		if err := s.put(key, value); err != nil {
			damaged = append(damaged, err)
		}
	}
	return s, damaged
}

// Apply returns the set that follows s after some records were put and others removed, and the errors of those that are damaged.
func (s *Set) Apply(put map[string][]byte, removed []string) (*Set, []error) {
	next := s.clone()
	var damaged []error
	for _, key := range removed {
		next.remove(key)
	}
	for key, value := range put {
		if err := next.put(key, value); err != nil {
			damaged = append(damaged, err)
		}
	}
	return next, damaged
}
