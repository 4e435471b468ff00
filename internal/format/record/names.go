package record

import (
	"fmt"
	"unicode/utf8"
)

// Classes of bytes in a category name.
const (
	nameFirst = 1 << 0 // may begin a name
	nameRest  = 1 << 1 // may follow
)

var nameClass = func() (t [256]uint8) {
	for c := '0'; c <= '9'; c++ {
		t[c] = nameFirst | nameRest
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c] = nameFirst | nameRest
		t[c-'a'+'A'] = nameFirst | nameRest
	}
	t['_'] = nameFirst | nameRest
	t['.'], t['-'] = nameRest, nameRest
	return t
}()

// AuditCategory is where a cell keeps the trail of who did what. Names that begin with '_' are for such categories of the cell itself.
const AuditCategory = "_audit"

// DeliveryCategory is where a cell keeps how complete its categories are.
const DeliveryCategory = "_delivery"

// IsOwnCategory reports whether name is that of a category of the cell itself, which has a schema of its own.
func IsOwnCategory(name string) bool { return name == AuditCategory || name == DeliveryCategory }

// ValidateCategory reports whether name is a valid name of a category: an ASCII letter, digit or '_', then letters, digits, '.', '_'
// and '-', at most [MaxCategoryName] bytes. Such a name is safe as a file name and as a part of an object key. The error is an
// [InvalidError].
func ValidateCategory(name string) error { return ValidateName("category name", name) }

// ValidateName is [ValidateCategory] for other names of the same form; what names the kind in the error: "group name".
func ValidateName(what, name string) error {
	if reason := checkName(name); reason != "" {
		return &InvalidError{What: what, Value: shortened(name), Reason: reason}
	}
	return nil
}

// checkName returns the violation of a category name, or "".
func checkName[T string | []byte](name T) string {
	switch {
	case len(name) == 0:
		return "must not be empty"
	case len(name) > MaxCategoryName:
		return fmt.Sprintf("is %d bytes long, the limit is %d", len(name), MaxCategoryName)
	case nameClass[name[0]]&nameFirst == 0:
		return "must begin with a letter or a digit"
	}
	for i := 1; i < len(name); i++ {
		if nameClass[name[i]]&nameRest == 0 {
			return fmt.Sprintf("byte %q at %d: only letters, digits, '.', '_' and '-' are allowed", name[i], i)
		}
	}
	return ""
}

// ValidateAttributeName reports whether a Builder accepts name as the name of an attribute: any non-empty UTF-8 text. It must be
// UTF-8 because names are strings in protobuf and JSON. The error is an [InvalidError].
func ValidateAttributeName(name string) error {
	switch {
	case name == "":
		return &InvalidError{What: "attribute name", Value: name, Reason: "must not be empty"}
	case !utf8.ValidString(name):
		return &InvalidError{What: "attribute name", Value: shortened(name), Reason: "must be UTF-8"}
	}
	return nil
}
