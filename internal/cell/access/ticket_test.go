package access

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/principal"
	scribev1 "scribe/proto/scribe/v1"
)

func keyRecord(t testing.TB, records map[string][]byte, id uint32) {
	t.Helper()
	records[KeyKey(id)] = encode(t, &scribev1.TicketKey{Id: id, Secret: bytes.Repeat([]byte{byte(id)}, KeyBytes), CreatedAt: noon.UnixMicro()})
}

func samplePointer(change func(*pointer.Pointer)) []byte {
	id := pointer.BlobID{6: 0x70, 8: 0x80}
	p := pointer.Pointer{
		Blob: id, Class: 72, Codec: pointer.CodecZstd, BlockOffset: 128, BlockLen: 1000, BlockRawLen: 5000, BlockCRC: 7, Offset: 100, Length: 200, Frames: 1, Messages: 3,
		MinTime: 1, MaxTime: 2,
	}
	if change != nil {
		change(&p)
	}
	return pointer.Append(nil, &p)
}

func TestTickets(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	keyRecord(t, records, 1)
	s := setOf(t, records)
	alice := client("alice")
	place := Place{Shard: 5 << 32, LSN: 9}
	mine := samplePointer(nil)
	ticket := s.SignTicket(alice, "a", place, mine, Limits{}, noon)
	at, cause := s.CheckTicket(ticket, alice, "a", mine, nil, noon.Add(TicketTTL-time.Second))
	if cause != Allowed || at != place {
		t.Fatalf("%v, %q", at, cause)
	}
	// Readers leave sequences out of the pointer.
	sequenced := samplePointer(func(p *pointer.Pointer) { p.Sequences = []pointer.Sequence{{Producer: 1, Epoch: 1, First: 1, Last: 3}} })
	if _, cause := s.CheckTicket(s.SignTicket(alice, "a", place, sequenced, Limits{}, noon), alice, "a", mine, nil, noon); cause != Allowed {
		t.Errorf("without its sequences: %q", cause)
	}
	tokenOf := alice
	tokenOf.Token = "other"
	agent := principal.Principal{Kind: principal.Agent, Name: "alice"}
	for name, c := range map[string]struct {
		p        principal.Principal
		category string
		pointer  []byte
		at       time.Time
		want     Cause
	}{
		"another reader":    {client("bob"), "a", mine, noon, BadTicket},
		"another token":     {tokenOf, "a", mine, noon, BadTicket},
		"another kind":      {agent, "a", mine, noon, BadTicket},
		"another category":  {alice, "b", mine, noon, BadTicket},
		"the whole block":   {alice, "a", samplePointer(func(p *pointer.Pointer) { p.Offset, p.Length = 0, p.BlockRawLen }), noon, BadTicket},
		"more of the block": {alice, "a", samplePointer(func(p *pointer.Pointer) { p.Length++ }), noon, BadTicket},
		"another block":     {alice, "a", samplePointer(func(p *pointer.Pointer) { p.BlockOffset++ }), noon, BadTicket},
		"another blob":      {alice, "a", samplePointer(func(p *pointer.Pointer) { p.Blob[15]++ }), noon, BadTicket},
		"another codec":     {alice, "a", samplePointer(func(p *pointer.Pointer) { p.Codec, p.BlockLen = pointer.CodecNone, p.BlockRawLen }), noon, BadTicket},
		"another region":    {alice, "a", samplePointer(func(p *pointer.Pointer) { p.Region = "eu" }), noon, BadTicket},
		"too late":          {alice, "a", mine, noon.Add(TicketTTL), OldTicket},
		"no pointer":        {alice, "a", []byte{1}, noon, BadTicket},
	} {
		if _, cause := s.CheckTicket(ticket, c.p, c.category, c.pointer, nil, c.at); cause != c.want {
			t.Errorf("%s: %q, want %q", name, cause, c.want)
		}
	}
	for i := range ticket {
		changed := bytes.Clone(ticket)
		changed[i] ^= 1
		if _, cause := s.CheckTicket(changed, alice, "a", mine, nil, noon); cause == Allowed {
			t.Errorf("byte %d of a ticket may be anything", i)
		}
	}
	for n := range len(ticket) {
		if _, cause := s.CheckTicket(ticket[:n], alice, "a", mine, nil, noon); cause != BadTicket {
			t.Errorf("%d bytes of a ticket: %q", n, cause)
		}
	}
}

// TestNamesakes: a reader's tickets may be those of its other tokens and kinds, of a bounded number, and of nobody else; a certificate's are its own.
func TestNamesakes(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	_, former := addToken(t, records, "alice", func(a *scribev1.AccessToken) { a.RevokedAt = noon.UnixMicro() })
	_, own := addToken(t, records, "alice", nil)
	_, foreign := addToken(t, records, "bob", nil)
	reader := principal.Principal{Kind: principal.Client, Name: "alice", Token: own}
	list := setOf(t, records).Namesakes(reader)
	for p, want := range map[principal.Principal]bool{
		{Kind: principal.Client, Name: "alice", Token: former}:   true,
		{Kind: principal.Operator, Name: "alice", Token: former}: true,
		{Kind: principal.Operator, Name: "alice", Token: own}:    true,
		{Kind: principal.Client, Name: "bob", Token: foreign}:    false,
		{Kind: principal.Client, Name: "alice"}:                  false,
	} {
		if slices.Contains(list, p) != want {
			t.Errorf("%v among %v: %v", p, list, !want)
		}
	}
	issued := principal.Principal{Kind: principal.Operator, Name: "alice", Issued: new(principal.Issued)}
	if list := setOf(t, records).Namesakes(issued); !slices.Equal(list, []principal.Principal{client("alice")}) {
		t.Errorf("of an issuer's token: %v", list)
	}
	if list := setOf(t, records).Namesakes(client("alice")); list != nil {
		t.Errorf("of a certificate: %v", list)
	}
	for range maxNamesakes {
		addToken(t, records, "alice", nil)
	}
	if n := len(setOf(t, records).Namesakes(reader)); n != 2*maxNamesakes+1 {
		t.Errorf("%d of %d tokens and their kinds", n, maxNamesakes+2)
	}
}

// TestTicketKeys: tickets of an earlier key stay valid while the key is kept, and one of a key that has not arrived is worth a retry.
func TestTicketKeys(t *testing.T) {
	records := recordsOf(t, "alice read:a")
	keyRecord(t, records, 1)
	before, mine, alice := setOf(t, records), samplePointer(nil), client("alice")
	old := before.SignTicket(alice, "a", Place{}, mine, Limits{}, noon)
	keyRecord(t, records, 2)
	both := setOf(t, records)
	fresh := both.SignTicket(alice, "a", Place{}, mine, Limits{}, noon)
	if _, cause := both.CheckTicket(old, alice, "a", mine, nil, noon); cause != Allowed {
		t.Errorf("of the earlier key: %q", cause)
	}
	if _, cause := before.CheckTicket(fresh, alice, "a", mine, nil, noon); cause != NotKnown {
		t.Errorf("of a key that has not arrived: %q", cause)
	}
	gone, _ := both.Apply(nil, []string{KeyKey(1)})
	if _, cause := gone.CheckTicket(old, alice, "a", mine, nil, noon); cause != OldTicket {
		t.Errorf("of a key that is gone: %q", cause)
	}
	if both.SignTicket(alice, "a", Place{}, []byte("damaged"), Limits{}, noon) != nil {
		t.Error("a ticket for no pointer")
	}
}

// BenchmarkTicket: go test -run '^$' -bench Ticket -count 6 ./internal/cell/access
func BenchmarkTicket(b *testing.B) {
	records := recordsOf(b, "alice read:a")
	keyRecord(b, records, 1)
	s, mine, alice := setOf(b, records), samplePointer(nil), client("alice")
	ticket := s.SignTicket(alice, "a", Place{}, mine, Limits{}, noon)
	b.Run("sign", func(b *testing.B) {
		for b.Loop() {
			s.SignTicket(alice, "a", Place{}, mine, Limits{}, noon)
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if _, cause := s.CheckTicket(ticket, alice, "a", mine, nil, noon); cause != Allowed {
				b.Fatal(cause)
			}
		}
	})
}
