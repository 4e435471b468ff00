package access

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
)

// TicketTTL is how long a ticket lets its reader fetch. Whether the reader still has the right to is asked with every fetch, so this
// bounds only what a key can be used for.
const TicketTTL = 24 * time.Hour

// Layout of a ticket (docs/format/access.md). Integers are little-endian: version 1, key 4, end in Unix seconds 8, shard 8, LSN 8, of version 2 the
// digest of the reader's restriction 16 and the version of the schema that it was applied to 4, MAC 16. Only who has no restriction gets version 1, so that a process that
// knows none refuses the others.
const (
	ticketVersion    = 1
	ticketRestricted = 2
	ticketHead       = 1 + 4 + 8 + 8 + 8
	ticketMAC        = 16
	ticketLen        = ticketHead + ticketMAC
	ticketLimits     = restrict.DigestLen + 4
	restrictedLen    = ticketLen + ticketLimits
)

// Limits are under which restriction, nil for none, and with which version of the category's schema a reader was given its tickets.
type Limits struct {
	Restriction *restrict.Restriction
	Schema      uint32
}

// Place is where a pointer stands in a reader's log.
type Place struct {
	Shard, LSN uint64
}

// SignTicket returns the ticket with which a principal, under a restriction or none, may fetch the payload of a pointer in a category; nil if there is no key, or
// the pointer can't be decoded.
func (s *Set) SignTicket(p principal.Principal, category string, at Place, encoded []byte, limits Limits, now time.Time) []byte {
	key := s.keys[s.newest]
	canonical, ok := canonicalPointer(encoded)
	if key == nil || !ok {
		return nil
	}
	t := make([]byte, 0, restrictedLen)
	version := byte(ticketVersion)
	if limits.Restriction != nil {
		version = ticketRestricted
	}
	t = append(t, version)
	t = binary.LittleEndian.AppendUint32(t, s.newest)
	t = binary.LittleEndian.AppendUint64(t, uint64(now.Add(TicketTTL).Unix())) //nolint:gosec // after 1970
	t = binary.LittleEndian.AppendUint64(t, at.Shard)
	t = binary.LittleEndian.AppendUint64(t, at.LSN)
	if limits.Restriction != nil {
		digest := limits.Restriction.Digest()
		t = binary.LittleEndian.AppendUint32(append(t, digest[:]...), limits.Schema)
	}
	return append(t, macOf(key, t, p, category, canonical)...)
}

// CheckTicket returns why (NotKnown: the key has not arrived yet) a ticket does not let a principal fetch the payload of a pointer in a category, or Allowed; and the place
// that the ticket is for. Nothing of the pointer can be changed: its blob, its block and its range are under the MAC. A ticket that was given under another restriction
// than r, which the principal has now, is OldRights: read stream and read proxy must agree on what the reader may see.
func (s *Set) CheckTicket(ticket []byte, p principal.Principal, category string, encoded []byte, r *restrict.Restriction, now time.Time) (Place, Cause) {
	head := ticketHead
	switch {
	case len(ticket) == ticketLen && ticket[0] == ticketVersion:
	case len(ticket) == restrictedLen && ticket[0] == ticketRestricted:
		head += ticketLimits
	default:
		return Place{}, BadTicket
	}
	id := binary.LittleEndian.Uint32(ticket[1:])
	key := s.keys[id]
	canonical, ok := canonicalPointer(encoded)
	switch {
	case !ok:
		return Place{}, BadTicket
	case key == nil && id > s.newest:
		return Place{}, NotKnown // it is on its way here
	case key == nil:
		return Place{}, OldTicket
	}
	if !hmac.Equal(ticket[head:], macOf(key, ticket[:head], p, category, canonical)) {
		return Place{}, BadTicket
	}
	if uint64(now.Unix()) >= binary.LittleEndian.Uint64(ticket[5:]) { //nolint:gosec // after 1970
		return Place{}, OldTicket
	}
	var digest restrict.Digest // that of no restriction in version 1
	if head > ticketHead {
		copy(digest[:], ticket[ticketHead:])
	}
	if digest != r.Digest() {
		return Place{}, OldRights
	}
	return Place{Shard: binary.LittleEndian.Uint64(ticket[13:]), LSN: binary.LittleEndian.Uint64(ticket[21:])}, Allowed
}

// SchemaOf returns the version of the schema with which a ticket was given that CheckTicket has allowed; 0 without a restriction. A read proxy must not know an older one:
// it could show what the limits hide by its newer name.
func SchemaOf(ticket []byte) uint32 {
	if len(ticket) != restrictedLen {
		return 0
	}
	return binary.LittleEndian.Uint32(ticket[ticketHead+restrict.DigestLen:])
}

// SealPointer returns a pointer for a reader with a restriction: the checksum of its block, with which the reader could try out what is in rows and columns that it may not
// see, is under a mask, which UnsealPointer takes off. Its ticket is signed afterwards, by the same Set. nil if the pointer can't be decoded. Without a key, and so without a
// ticket, the pointer has no checksum.
func (s *Set) SealPointer(encoded []byte, at Place, r *restrict.Restriction) []byte {
	return maskChecksum(encoded, s.keys[s.newest], s.newest, at, r.Digest())
}

// UnsealPointer returns the pointer that SealPointer was given, by its ticket, which CheckTicket has allowed.
func (s *Set) UnsealPointer(ticket, sealed []byte) []byte {
	if len(ticket) != restrictedLen {
		return sealed
	}
	id := binary.LittleEndian.Uint32(ticket[1:])
	at := Place{Shard: binary.LittleEndian.Uint64(ticket[13:]), LSN: binary.LittleEndian.Uint64(ticket[21:])}
	return maskChecksum(sealed, s.keys[id], id, at, restrict.Digest(ticket[ticketHead:ticketHead+restrict.DigestLen]))
}

// maskChecksum puts the mask of a place and a restriction on the checksum of a pointer's block, or takes it off.
func maskChecksum(encoded, key []byte, id uint32, at Place, d restrict.Digest) []byte {
	p, err := pointer.Decode(encoded)
	switch {
	case err != nil:
		return nil
	case key == nil:
		p.BlockCRC = 0
		return pointer.Append(nil, &p)
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte("scribe block checksum"))
	head := binary.LittleEndian.AppendUint32(nil, id)
	head = binary.LittleEndian.AppendUint64(head, at.Shard)
	m.Write(append(binary.LittleEndian.AppendUint64(head, at.LSN), d[:]...))
	p.BlockCRC ^= binary.LittleEndian.Uint32(m.Sum(nil))
	return pointer.Append(nil, &p)
}

// maxNamesakes bounds the tokens of one principal that a reader may have replaced.
const maxNamesakes = 512

// Namesakes returns whom a stream may have given a reader's tickets to beside the reader: the same principal with a token that it has replaced since, or as
// what its token's rights made it before. Tickets of theirs are as good, since the reader's own right is asked with every fetch. Only tokens are replaced
// under a stream.
func (s *Set) Namesakes(p principal.Principal) (list []principal.Principal) {
	if p.Token == "" && p.Issued == nil {
		return nil
	}
	tokens := []string{p.Token}
	if p.Token != "" {
		tokens = append(tokens, s.otherTokens(p)...)
	}
	for _, token := range tokens {
		for _, kind := range []principal.Kind{principal.Client, principal.Operator} {
			if token != p.Token || kind != p.Kind {
				list = append(list, principal.Principal{Kind: kind, Name: p.Name, Token: token})
			}
		}
	}
	return list
}

// otherTokens returns the ids of a principal's other tokens, those issued last first. Ended ones are among them.
func (s *Set) otherTokens(p principal.Principal) (ids []string) {
	for id, t := range s.tokens {
		if id != p.Token && !t.damaged && t.principal == p.Name {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.tokens[b].issued, s.tokens[a].issued), cmp.Compare(a, b))
	})
	return ids[:min(len(ids), maxNamesakes)]
}

// canonicalPointer returns a pointer without its sequences, which readers leave out since they need none.
func canonicalPointer(encoded []byte) ([]byte, bool) {
	p, err := pointer.Decode(encoded)
	if err != nil {
		return nil, false
	}
	if len(p.Sequences) == 0 {
		return encoded, true
	}
	p.Sequences = nil
	return pointer.Append(nil, &p), true
}

func macOf(key, head []byte, p principal.Principal, category string, canonical []byte) []byte {
	m := hmac.New(sha256.New, key)
	field := func(b []byte) {
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(b))) //nolint:gosec // names and pointers are short
		m.Write(n[:])
		m.Write(b)
	}
	field([]byte("scribe ticket"))
	field(head)
	field([]byte{byte(p.Kind)})
	field([]byte(p.Name))
	field([]byte(p.Token))
	field([]byte(category))
	field(canonical)
	return m.Sum(nil)[:ticketMAC]
}
