package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Violation is an error in one field of a configuration.
type Violation struct {
	// Package is the package of the configuration. Field is the path of the Go field: "Rules[0].MaxAge".
	Package, Field string
	// Text describes the error: "invalid value 0: want 1 to 10".
	Text string
}

// Error implements error.
func (v Violation) Error() string { return v.Package + ": " + v.Field + ": " + v.Text }

// Bounds are named values for min and max tags that are not fields: Go constants, and values derived from several fields.
type Bounds map[string]int64

// Violations collects the violations of a configuration.
type Violations struct {
	pkg  string
	errs []error
}

// Check returns every violation of the tags in the struct that c points to. For a nested struct with a Validate method, it calls
// that method instead.
func Check(pkg string, c any, bounds Bounds) *Violations {
	v := &Violations{pkg: pkg}
	v.checkStruct(reflect.ValueOf(c).Elem(), bounds)
	return v
}

// Err returns all violations, joined; nil if there are none.
func (v *Violations) Err() error { return errors.Join(v.errs...) }

// Add adds a violation of a field.
func (v *Violations) Add(field, format string, args ...any) {
	v.errs = append(v.errs, Violation{Package: v.pkg, Field: field, Text: fmt.Errorf(format, args...).Error()})
}

// Join adds the error of a nested configuration's Validate method. It ignores nil.
func (v *Violations) Join(field string, err error) {
	for _, err := range Errors(err) {
		if inner, ok := errors.AsType[Violation](err); ok {
			inner.Package, inner.Field = v.pkg, join(field, inner.Field)
			err = inner
		}
		v.errs = append(v.errs, err)
	}
}

// Errors returns the parts of an error that [errors.Join] made.
func Errors(err error) []error {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &joined):
		return []error{err}
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		errs = append(errs, Errors(err)...)
	}
	return errs
}

func (v *Violations) checkStruct(st reflect.Value, bounds Bounds) {
	enter := func(section reflect.Value, s Setting, path string) bool {
		c, validates := reflect.TypeAssert[interface{ Validate() error }](section.Addr())
		if validates && !s.unchecked() {
			v.Join(path, c.Validate())
		}
		return !validates && !s.unchecked()
	}
	walkStruct(st, "", "", enter, func(s Setting) bool {
		if text := s.violation(bounds); text != "" && !s.unchecked() {
			v.Add(s.Field, "%s", text)
		}
		return true
	})
}

// unchecked reports whether somebody else checks the field.
func (s *Setting) unchecked() bool { return s.tag.Get("check") == "off" }

// violation describes the error of the value; "" if it is valid.
func (s *Setting) violation(bounds Bounds) string {
	v := s.value
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	if what := s.tag.Get("required"); what != "" && v.IsZero() {
		return "missing: want " + what
	}
	if list := strings.Fields(s.tag.Get("oneof")); len(list) > 0 && !slices.Contains(list, s.text(v)) {
		last := len(list) - 1
		return fmt.Sprintf("invalid value %q: want %s or %s", s.text(v), strings.Join(list[:last], ", "), list[last])
	}
	least, most := s.tag.Get("min"), s.tag.Get("max")
	if least == "" && most == "" || s.tag.Get("zero") == "off" && v.IsZero() {
		return ""
	}
	want, ok := s.within(v, least, most, bounds)
	if ok {
		return ""
	}
	if s.tag.Get("zero") == "off" {
		want = "0 or " + want
	}
	return fmt.Sprintf("invalid value %s: want %s", s.text(v), want)
}

// compareNumbers compares two numbers of the same type. NaN is less than any other.
func compareNumbers(a, b reflect.Value) int {
	switch {
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	default:
		return cmp.Compare(a.Int(), b.Int())
	}
}

// within reports whether a value is within its bounds, and describes them.
func (s *Setting) within(v reflect.Value, least, most string, bounds Bounds) (want string, ok bool) {
	least, above := strings.CutPrefix(least, ">")
	ok = true
	var low, high string
	if least != "" {
		bound := s.bound(least, bounds)
		order := compareNumbers(v, bound)
		low, ok = s.text(bound), order == 1 || order == 0 && !above
	}
	if most != "" {
		bound := s.bound(most, bounds)
		high, ok = s.text(bound), ok && compareNumbers(v, bound) <= 0
	}
	switch {
	case above && most != "":
		want = "more than " + low + ", and at most " + high
	case above:
		want = "more than " + low
	case most == "":
		want = "at least " + low
	case least == "":
		want = "at most " + high
	default:
		want = low + " to " + high
	}
	return want, ok
}

// bound returns the value that a tag names, in the setting's type.
func (s *Setting) bound(text string, bounds Bounds) reflect.Value {
	t := s.value.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	bound := reflect.New(t).Elem()
	number, known := bounds[text]
	switch field := s.parent.FieldByName(text); {
	case known:
		bound.Set(reflect.ValueOf(number).Convert(t))
	case field.IsValid():
		bound.Set(field.Convert(t))
	default:
		if err := s.parse(bound, text); err != nil {
			panic(fmt.Sprintf("config: bound of %v.%s: %v", s.parent.Type(), s.Field, err))
		}
	}
	return bound
}
