package rpc

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/internal/base/backoff"
)

// AddressList has addresses of one cell as a user writes them: URLs, host:port or unix:/path, the preferred one first. As text
// they are separated by commas, and that text stands wherever this package takes a base URL.
type AddressList []string

// MaxAddresses bounds a list.
const MaxAddresses = 32

// ParseAddresses reads a list. It reports an empty, invalid or repeated address.
func ParseAddresses(text string) (AddressList, error) {
	if n := strings.Count(text, ",") + 1; n > MaxAddresses {
		return nil, fmt.Errorf("%d addresses, the limit is %d", n, MaxAddresses)
	}
	var list AddressList
	known := make(map[string]bool)
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if err := checkAddress(entry); err != nil {
			return nil, cmp.Or(emptyEntry(entry, text), err)
		}
		base := strings.ToLower(baseURL(entry))
		if known[base] {
			return nil, fmt.Errorf("the address %q is in %q twice", entry, text)
		}
		known[base] = true
		list = append(list, entry)
	}
	return list, nil
}

// CheckAddresses reports what is wrong with a list of several addresses. A single one is not checked, as in [Transport.Addresses].
func CheckAddresses(text string) error {
	if !strings.Contains(text, ",") {
		return nil
	}
	_, err := ParseAddresses(text)
	return err
}

// emptyEntry returns the error for an entry that is missing in a list of several.
func emptyEntry(entry, text string) error {
	if entry != "" || !strings.Contains(text, ",") {
		return nil
	}
	return fmt.Errorf("an address in %q is empty: want addresses separated by single commas", text)
}

// checkAddress reports whether an address can be called at all.
func checkAddress(address string) error {
	invalid := fmt.Errorf("invalid address %q: want http://host:port, host:port or unix:/path", address)
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if strings.Trim(path, "/") == "" {
			return invalid
		}
		return nil
	}
	u, err := url.Parse(baseURL(address))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.HasPrefix(address, "/") {
		return invalid
	}
	return nil
}

// String returns the list as text.
func (l AddressList) String() string { return strings.Join(l, ",") }

// awayPause is how long an address that could not be reached is asked after the others.
var awayPause = backoff.Backoff{Min: time.Second, Max: 15 * time.Second}

// AddressSet is what a process knows about the addresses of a list: which one answered last, and which ones are away. It spreads
// nothing: everything goes to one address while that answers. It is safe for concurrent use.
type AddressSet struct {
	list    AddressList
	returns bool // the first address is preferred whenever it is not away
	mu      struct {
		sync.Mutex
		preferred int       // the one that answered last; at first the first one
		away      []absence // by index
	}
}

// absence is the state of an address that can't be reached; the zero absence of one that can, or was not tried.
type absence struct {
	failures int // in a row
	until    time.Time
}

func newAddressSet(list AddressList) *AddressSet {
	s := &AddressSet{list: list}
	s.mu.away = make([]absence, len(list))
	return s
}

// PreferFirst returns a set of names that is not shared, for callers that choose by Order. Its order begins with the first one
// whenever that is not away.
func PreferFirst(list AddressList) *AddressSet {
	s := newAddressSet(list)
	s.returns = true
	return s
}

// maxSets bounds the lists that a transport remembers. Lists come from the configuration of a process, which has few.
const maxSets = 64

// Addresses returns what the clients of a transport know together about the addresses of a list. A single address is not checked:
// the calls to it report what is wrong.
func (t *Transport) Addresses(text string) (*AddressSet, error) {
	t.sets.Lock()
	defer t.sets.Unlock()
	if known := t.sets.byText[text]; known != nil {
		return known, nil
	}
	list := AddressList{text}
	if strings.Contains(text, ",") {
		var err error
		if list, err = ParseAddresses(text); err != nil {
			return nil, err
		}
	}
	made := newAddressSet(list)
	if t.sets.byText == nil {
		t.sets.byText = make(map[string]*AddressSet)
	}
	if len(t.sets.byText) < maxSets {
		t.sets.byText[text] = made
	}
	return made, nil
}

// Order returns the addresses in the order in which a call tries them: the one that answered last, those after it in the list,
// and at the end those that are away, the longest known first.
func (s *AddressSet) Order() AddressList {
	var out AddressList
	for _, i := range s.orderIndexes() {
		out = append(out, s.list[i])
	}
	return out
}

func (s *AddressSet) orderIndexes() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	order := make([]int, len(s.list))
	for k := range order {
		order[k] = (s.mu.preferred + k) % len(order)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return s.awayUntil(a, now).Compare(s.awayUntil(b, now))
	})
	return order
}

// awayUntil returns the time until which an address is away; zero if it is not. The mutex is held.
func (s *AddressSet) awayUntil(i int, now time.Time) time.Time {
	if until := s.mu.away[i].until; until.After(now) {
		return until
	}
	return time.Time{}
}

// ReportOutcome says how a call to one of the addresses ended, for callers that choose by Order. With an error the address was
// not reached, or did not answer.
func (s *AddressSet) ReportOutcome(address string, err error) {
	i := slices.Index(s.list, address)
	switch {
	case i < 0:
	case err == nil:
		s.markPresent(i)
	default:
		s.markAway(i)
	}
}

func (s *AddressSet) markPresent(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.away[i] = absence{}
	if !s.returns {
		s.mu.preferred = i
	}
}

// markAway delays the next call to an address. Calls that fail together count once.
func (s *AddressSet) markAway(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, a := time.Now(), &s.mu.away[i]
	if a.until.After(now) {
		return
	}
	a.failures++
	a.until = now.Add(awayPause.Mean(a.failures))
}

// joinUnreached returns the error of a call that reached none of several addresses, so that nothing was sent.
func joinUnreached(failed []error) error {
	texts := make([]string, len(failed))
	for i, err := range failed {
		texts[i] = err.Error()
	}
	return &dialError{errors.New("none of the addresses can be reached: " + strings.Join(texts, "; "))}
}
