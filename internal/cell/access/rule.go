package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"scribe/internal/format/record"
	"scribe/internal/role/restrict"
)

// Permission is a set of what can be permitted on a category. On the cell as a whole a rule permits only what it permits on every
// category.
type Permission uint8

// The permissions.
const (
	// Write appends messages.
	Write Permission = 1 << iota
	// Read reads streams of pointers and payloads.
	Read
	// Query has the SQL server read.
	Query
	// Group joins, resets and deletes consumer groups.
	Group
	// Manage creates, changes and deletes the category.
	Manage
	// Operate is for those who run the cell: tokens, grants, nodes and profiles. It is asked on the whole cell only, and includes Monitor.
	Operate
	// Monitor looks at how the cell and its processes are, and changes nothing: metrics, health, traffic, members, nodes. It is asked on the whole
	// cell only.
	Monitor

	// All is every permission.
	All = Write | Read | Query | Group | Manage | Operate | Monitor
	// OfCell are those that are asked on the whole cell only.
	OfCell = Operate | Monitor
	// Visible is what shows a category to whoever may do any of it.
	Visible = All &^ Monitor
)

// permissionNames are in the order in which rules name them.
var permissionNames = []struct {
	name string
	of   Permission
}{{"write", Write}, {"read", Read}, {"query", Query}, {"group", Group}, {"manage", Manage}, {"operate", Operate}, {"monitor", Monitor}}

// ParsePermission returns the permission of a name.
func ParsePermission(name string) (Permission, error) {
	for _, p := range permissionNames {
		if p.name == name {
			return p.of, nil
		}
	}
	return 0, fmt.Errorf("unknown permission %q: want write, read, query, group, manage, operate or monitor", shortenText(name))
}

// String returns the names, separated by commas, as rules have them.
func (p Permission) String() string {
	if p == All {
		return "all"
	}
	var names []string
	for _, n := range permissionNames {
		if p&n.of != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ",")
}

// Bounds of what administrators store. The control plane refuses more, so that every copy stays small.
const (
	// MaxName bounds the name of a principal, a role or an owner, in bytes.
	MaxName = 255
	// MaxTokenRules bounds the rules of a token, MaxGrantRules those of a principal or role.
	MaxTokenRules = 100
	MaxGrantRules = 1000
	// MaxRoles bounds the roles of a principal, which a check may look through.
	MaxRoles = 16
	// MaxTokens bounds the tokens of a cell, MaxPrincipals the principals and roles with grants, MaxRules their rules together.
	MaxTokens     = 10_000
	MaxPrincipals = 20_000
	MaxRules      = 200_000
	// MaxRecordLimits bounds the limits to rows and columns of one token, principal or role together, MaxLimitBytes those of all, in bytes: every process of the cell has a copy.
	MaxRecordLimits = 128 << 10
	MaxLimitBytes   = 32 << 20
)

// rolePrefix begins the names of roles, and the rules that give a principal a role.
const rolePrefix = "role:"

// ownerPrefix begins the pattern of a rule for categories of an owner.
const ownerPrefix = "owner="

// patternKind says what the text of a pattern is compared with.
type patternKind uint8

const (
	exactName patternKind = iota
	namePrefix
	ownerName
)

// Rule permits something on the categories of a pattern.
type Rule struct {
	Permissions Permission
	// Limit says to which rows and columns reading is limited.
	Limit restrict.Limit
	kind  patternKind
	text  string // without the star or the prefix
}

// limitable are the permissions that can be limited to rows and columns.
const limitable = Read | Query

// ParseRule parses `PERMISSION[,PERMISSION...]:PATTERN [LIMIT]`: the pattern is a category's name, the beginning of names and a star, or
// `owner=OWNER`, which takes no limit: names of owners may have blanks. The permission `all` is every one. A limit is what restrict.ParseLimit takes.
//
// Programs that know no limits take a rule with one for damaged, since no name of a category has a blank: they deny.
func ParseRule(text string) (Rule, error) {
	fail := func(err error) error { return fmt.Errorf("invalid rule %q: %w", shortenText(text), err) }
	names, pattern, ok := strings.Cut(text, ":")
	if !ok {
		return Rule{}, fail(errors.New("want PERMISSION:PATTERN, as in read:web.*"))
	}
	var r Rule
	for name := range strings.SplitSeq(names, ",") {
		if name == "all" {
			r.Permissions |= All
			continue
		}
		p, err := ParsePermission(name)
		if err != nil {
			return Rule{}, fail(err)
		}
		r.Permissions |= p
	}
	if at := strings.IndexByte(pattern, ' '); at >= 0 && !strings.HasPrefix(pattern, ownerPrefix) {
		var err error
		if r.Limit, err = restrict.ParseLimit(pattern[at+1:]); err != nil {
			return Rule{}, fail(err)
		}
		if r.Permissions&^limitable != 0 {
			return Rule{}, fail(fmt.Errorf("only read and query can be limited to rows and columns: give %s in a rule of its own", r.Permissions&^limitable))
		}
		pattern = pattern[:at]
	}
	r.text = pattern
	if owner, ok := strings.CutPrefix(pattern, ownerPrefix); ok {
		r.kind, r.text = ownerName, owner
		if err := checkName("owner", owner); err != nil {
			return Rule{}, fail(err)
		}
	} else if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		r.kind, r.text = namePrefix, prefix
		if prefix != "" {
			if err := record.ValidateCategory(prefix); err != nil {
				return Rule{}, fail(fmt.Errorf("%q is not the beginning of a category's name", shortenText(prefix)))
			}
		}
	} else if err := record.ValidateCategory(pattern); err != nil {
		return Rule{}, fail(fmt.Errorf("want a category's name, its beginning and a star, or owner=OWNER: %w", err))
	}
	if ofCell := r.Permissions & OfCell; ofCell != 0 && r.Permissions != All && !r.coversAll() {
		return Rule{}, fail(fmt.Errorf("%s is for the cell as a whole: want %[1]s:*", ofCell))
	}
	return r, nil
}

// String returns the rule as ParseRule takes it, with its permissions in their order: equal rules have equal texts.
func (r Rule) String() string {
	text := r.Permissions.String() + ":"
	switch r.kind {
	case namePrefix:
		text += r.text + "*"
	case ownerName:
		text += ownerPrefix + r.text
	default:
		text += r.text
	}
	if !r.Limit.IsZero() {
		text += " " + r.Limit.String()
	}
	return text
}

// isFor reports whether the rule is for a category. The cell as a whole, "", is none.
func (r *Rule) isFor(category, owner string) bool {
	switch {
	case category == "":
		return false
	case r.kind == namePrefix:
		return strings.HasPrefix(category, r.text)
	case r.kind == ownerName:
		return owner != "" && owner == r.text
	default:
		return category == r.text
	}
}

// Category returns the name of the one category that the rule is for; "" if it is for others as well.
func (r *Rule) Category() string {
	if r.kind != exactName {
		return ""
	}
	return r.text
}

// CheckNewRule returns an error for a rule about an owner that somebody may have meant to limit.
func CheckNewRule(text string) error {
	_, pattern, _ := strings.Cut(text, ":")
	if !strings.HasPrefix(pattern, ownerPrefix) {
		return nil
	}
	for _, word := range []string{" where ", " hide ", " mask "} {
		if strings.Contains(pattern, word) {
			return fmt.Errorf("invalid rule %q: a rule about an owner can't be limited to rows and columns: name the categories, or the beginning of their names", shortenText(text))
		}
	}
	return nil
}

// coversAll reports whether the rule is for every category.
func (r Rule) coversAll() bool { return r.kind == namePrefix && r.text == "" }

// ParseRules parses the rules of a token, or with roles those of a principal, and reports every invalid one. It returns them in
// their normal form, sorted, each once.
func ParseRules(texts []string, roles bool) (normal []string, err error) {
	var errs []error
	count := 0
	for _, text := range texts {
		role, isRole := strings.CutPrefix(text, rolePrefix)
		switch {
		case isRole && !roles:
			errs = append(errs, fmt.Errorf("invalid rule %q: only principals have roles", shortenText(text)))
		case isRole:
			errs = append(errs, checkName("role", role))
			normal = append(normal, text)
			count++
		default:
			r, err := ParseRule(text)
			errs = append(errs, err)
			normal = append(normal, r.String())
		}
	}
	slices.Sort(normal)
	normal = slices.Compact(normal)
	if count > MaxRoles {
		errs = append(errs, fmt.Errorf("%d roles, the limit is %d", count, MaxRoles))
	}
	return normal, errors.Join(errs...)
}

// CheckPrincipal checks the name of a principal or role.
func CheckPrincipal(name string) error {
	if role, ok := strings.CutPrefix(name, rolePrefix); ok {
		return checkName("role", role)
	}
	return checkName("principal", name)
}

// RoleName returns what grants call a role.
func RoleName(name string) string { return rolePrefix + name }

// IsRole reports whether a name of a grant is that of a role.
func IsRole(name string) bool { return strings.HasPrefix(name, rolePrefix) }

// checkName checks a name that is part of keys, logs and lists: printable, and of a bounded length.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the %s has no name", what)
	case len(name) > MaxName:
		return fmt.Errorf("the name of the %s has %d bytes, the limit is %d", what, len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name of the %s is not UTF-8", what)
	}
	for _, c := range name {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("the name of the %s, %q, has the character %q, which can't be printed", what, shortenText(name), c)
		}
	}
	if strings.TrimSpace(name) != name {
		return fmt.Errorf("the name of the %s, %q, begins or ends with a space", what, name)
	}
	return nil
}

// shortenText bounds the length of a possibly invalid text in an error.
func shortenText(text string) string {
	if len(text) <= MaxName {
		return text
	}
	return strings.ToValidUTF8(text[:64], "") + "..."
}
