package restrict

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// Bounds of limits. What exceeds them is refused when it is granted, and denies where it is found.
const (
	// MaxCondition bounds the text of a condition, in bytes.
	MaxCondition = 1024
	// MaxColumns bounds the columns that one part of a limit names.
	MaxColumns = 100
	// MaxText bounds the text of a limit, in bytes. Every process of the cell has a copy of all rules.
	MaxText = 2 << 10
	// MaxLimits bounds the different limits of one reader for one category. All of them, each of MaxText, fit into a header (maxEncoded).
	MaxLimits = 16
)

// words begin the parts of a limit, in the order in which a limit's text has them.
var words = []string{"where", "hide", "mask", "show"}

// Limit is to which rows and columns a rule is limited. The zero Limit is none.
type Limit struct {
	// Where is a condition as of a query; only rows for which it is true are visible. "" = all.
	Where string
	// Hide are columns that do not exist for the reader, Mask those that are null in all rows. Sorted, and without columns of both.
	Hide, Mask []string
	// Show are built-in columns that are visible though others are hidden or masked: _key and _attr.
	Show []string
}

// IsZero reports whether the limit limits nothing.
func (l *Limit) IsZero() bool { return l.Where == "" && !l.limitsColumns() }

// limitsColumns reports whether columns are hidden or masked.
func (l *Limit) limitsColumns() bool { return len(l.Hide)+len(l.Mask) > 0 }

// ParseLimit parses `[where CONDITION] [hide COLUMN, ...] [mask COLUMN, ...] [show COLUMN, ...]`.
func ParseLimit(text string) (Limit, error) {
	var l Limit
	if len(text) > MaxText {
		return l, tooLong(len(text))
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return l, fmt.Errorf("the character %q can't be printed: write the limit on one line", c)
		}
	}
	clauses, err := sql.SplitClauses(text, words...)
	if err != nil {
		return l, fmt.Errorf("want where CONDITION, hide COLUMNS, mask COLUMNS or show COLUMNS after the pattern: %w", oneLine(err))
	}
	seen := map[string]bool{}
	for _, c := range clauses {
		if seen[c.Word] {
			return l, fmt.Errorf("the word %q stands there twice: put a column of that name into double quotes", c.Word)
		}
		seen[c.Word] = true
		if err := l.setClause(c); err != nil {
			return Limit{}, err
		}
	}
	if err := l.check(); err != nil {
		return Limit{}, err
	}
	if n := len(l.String()); n > MaxText { // as it is stored, with a blank behind each comma: it must be readable again
		return Limit{}, tooLong(n)
	}
	return l, nil
}

func tooLong(n int) error {
	return fmt.Errorf("its limit has %d bytes, at most %d are allowed: make a category of what it shows, or name fewer columns", n, MaxText)
}

func (l *Limit) setClause(c sql.Clause) error {
	if c.Word == "where" {
		if len(c.Text) > MaxCondition {
			return fmt.Errorf("its condition has %d bytes, at most %d are allowed", len(c.Text), MaxCondition)
		}
		if _, err := sql.ParsePredicate(c.Text); err != nil {
			return fmt.Errorf("invalid condition after where: %w", oneLine(err))
		}
		l.Where = c.Text
		return nil
	}
	names, err := sql.ParseNames(c.Text)
	if err != nil {
		return fmt.Errorf("invalid columns after %s: %w", c.Word, oneLine(err))
	}
	if len(names) > MaxColumns {
		return fmt.Errorf("%d columns after %s, at most %d are allowed", len(names), c.Word, MaxColumns)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		builtIn, free := strings.HasPrefix(name, "_"), name == schema.ColumnKey || name == schema.ColumnAttr
		switch {
		case c.Word == "show" && !free:
			return fmt.Errorf("show %s: only %s and %s are hidden with others, and can be shown", name, schema.ColumnKey, schema.ColumnAttr)
		case builtIn && !free:
			return fmt.Errorf("%s %s: of the built-in columns only %s and %s can be hidden", c.Word, name, schema.ColumnKey, schema.ColumnAttr)
		}
	}
	switch c.Word {
	case "hide":
		l.Hide = names
	case "mask":
		l.Mask = names
	default:
		l.Show = names
	}
	return nil
}

// check checks how the parts go together.
func (l *Limit) check() error {
	if l.IsZero() {
		return errors.New("it says neither where nor hide nor mask")
	}
	if len(l.Show) > 0 && !l.limitsColumns() {
		return errors.New("show is for rules that hide or mask columns")
	}
	for _, name := range l.Mask {
		if slices.Contains(l.Hide, name) {
			return fmt.Errorf("column %s is both hidden and masked", name)
		}
	}
	for _, name := range l.Show {
		if slices.Contains(l.Hide, name) || slices.Contains(l.Mask, name) {
			return fmt.Errorf("column %s is both shown and hidden", name)
		}
	}
	return nil
}

// String returns the limit as ParseLimit takes it.
func (l *Limit) String() string {
	var parts []string
	if l.Where != "" {
		parts = append(parts, "where "+l.Where)
	}
	for i, names := range [][]string{l.Hide, l.Mask, l.Show} {
		if len(names) == 0 {
			continue
		}
		quoted := make([]string, len(names))
		for k, name := range names {
			quoted[k] = sql.QuoteName(name, words...)
		}
		parts = append(parts, words[i+1]+" "+strings.Join(quoted, ", "))
	}
	return strings.Join(parts, " ")
}

// oneLine is an error of package sql without the picture of the place.
func oneLine(err error) error {
	if e, ok := errors.AsType[*sql.Error](err); ok {
		return errors.New(e.Message)
	}
	return err
}

// DigestLen is the length of a digest.
const DigestLen = 16

// Digest tells restrictions apart. The zero Digest is that of none.
type Digest [DigestLen]byte

// Restriction is to what a reader is limited in one category: it may see what one of the limits shows. It is immutable; nil is none.
type Restriction struct {
	// limits are none where nothing may be read; nothing then says why.
	limits  []Limit
	nothing string
	texts   []string
	digest  Digest
	// least is the version that the category's schema must have at least; 0 = any. It is not in the digest.
	least uint32
}

// Over returns the restriction for a category whose schema has a version: it must not be applied to an older one, in which what it hides by a newer name may have another.
func (r *Restriction) Over(version uint32) *Restriction {
	if r == nil || r.least >= version {
		return r
	}
	over := *r
	over.least = version
	return &over
}

// Least returns the version that the category's schema must have at least.
func (r *Restriction) Least() uint32 {
	if r == nil {
		return 0
	}
	return r.least
}

// New returns the restriction of some limits, none of which is zero: then there would be no restriction. Under more than MaxLimits different ones nothing may be
// read, in no way of reading: some ways could not tell them to other processes.
func New(limits ...Limit) *Restriction {
	if len(limits) == 0 {
		return nil
	}
	r := &Restriction{texts: make([]string, len(limits))}
	byText := make(map[string]Limit, len(limits))
	for i := range limits {
		r.texts[i] = limits[i].String()
		byText[r.texts[i]] = limits[i]
	}
	slices.Sort(r.texts)
	r.texts = slices.Compact(r.texts)
	h := sha256.New()
	h.Write([]byte("scribe restriction"))
	for _, text := range r.texts {
		r.limits = append(r.limits, byText[text])
		_, _ = fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	copy(r.digest[:], h.Sum(nil))
	if n := len(r.texts); n > MaxLimits {
		r.limits, r.nothing = nil, fmt.Sprintf("%d different limits, at most %d are allowed for one category: take some of these rules away, or have one with several conditions joined by OR", n, MaxLimits)
	}
	return r
}

// Union returns the restriction of who has some restrictions, none of which is nil.
func Union(rs ...*Restriction) *Restriction {
	if len(rs) == 1 {
		return rs[0]
	}
	var limits []Limit
	for _, r := range rs {
		limits = append(limits, r.limits...)
	}
	if len(limits) == 0 {
		return Nothing()
	}
	return New(limits...)
}

// Nothing returns a restriction under which nothing may be read. It is no header's.
func Nothing() *Restriction {
	r, sum := &Restriction{nothing: "no rule lets any of it be read"}, sha256.Sum256([]byte("scribe restriction to nothing"))
	copy(r.digest[:], sum[:])
	return r
}

// Digest returns the restriction's digest.
func (r *Restriction) Digest() Digest {
	if r == nil {
		return Digest{}
	}
	return r.digest
}

// Texts returns the limits as texts, sorted.
func (r *Restriction) Texts() []string {
	if r == nil {
		return nil
	}
	return slices.Clone(r.texts)
}

// Header is the HTTP header with which a member of the cell says that it reads for somebody with a restriction, and with which the answer says
// that it was heeded: the request has Encode's text, the answer the digest's.
const Header = "Scribe-Restriction"

// Encode returns the restriction as text of a header: the version that the schema must have at least, a colon, and the limits, which have no line breaks, a line each, in URL-safe
// base64.
func (r *Restriction) Encode() string {
	return strconv.FormatUint(uint64(r.least), 10) + ":" + base64.RawURLEncoding.EncodeToString([]byte(strings.Join(r.texts, "\n")))
}

// Text returns the digest as text of a header.
func (d Digest) Text() string { return base64.RawURLEncoding.EncodeToString(d[:]) }

// maxEncoded bounds the text of a header: a version, and MaxLimits of MaxText and their line breaks, a third longer in base64. Servers take headers of 64 KiB together.
const maxEncoded = len("4294967295:") + (MaxLimits*(MaxText+1)*4+2)/3

// Decode returns the restriction that Encode wrote. It is never nil without an error.
func Decode(text string) (*Restriction, error) {
	fail := func(err error) (*Restriction, error) { return nil, fmt.Errorf("header %s: %w", Header, err) }
	if len(text) > maxEncoded {
		return fail(fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), maxEncoded))
	}
	version, encoded, _ := strings.Cut(text, ":")
	least, err := strconv.ParseUint(version, 10, 32)
	if err != nil {
		return fail(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fail(err)
	}
	if n := bytes.Count(raw, []byte("\n")) + 1; n > MaxLimits {
		return fail(fmt.Errorf("it has %d limits, at most %d are allowed", n, MaxLimits))
	}
	texts := strings.Split(string(raw), "\n")
	limits := make([]Limit, len(texts))
	for i, t := range texts {
		if limits[i], err = ParseLimit(t); err != nil {
			return fail(err)
		}
	}
	return New(limits...).Over(uint32(least)), nil
}

type contextKey struct{}

// NewContext returns a context for a call whose answer is restricted.
func NewContext(ctx context.Context, r *Restriction) context.Context {
	return context.WithValue(ctx, contextKey{}, r)
}

// FromContext returns the restriction of a call; nil without one.
func FromContext(ctx context.Context) *Restriction {
	r, _ := ctx.Value(contextKey{}).(*Restriction)
	return r
}
