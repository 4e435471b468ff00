// Package config is how the Validate methods of configurations say what is wrong with them: every fault at once, each of a type that
// names the field. So who made one configuration out of another can say it again in the words of that.
package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"scribe/internal/base/units"
)

// Open is the upper bound of a field that has none.
const Open = math.MaxInt64

// Fault is what is wrong with a field of a configuration.
type Fault struct {
	// Package is the one whose configuration it is. Field is the field's Go name, with the place in a list: "Rules[0].MaxAge".
	Package, Field string
	// Text follows the field's name, whatever that is: " is 0, it must be 1 to 10", or ": none is given".
	Text string
}

// Error implements error.
func (f Fault) Error() string { return f.Package + ": " + f.Field + f.Text }

// Faults collects those of a configuration.
type Faults struct {
	pkg  string
	errs []error
}

// Of returns none, yet, of the configuration of package pkg.
func Of(pkg string) *Faults { return &Faults{pkg: pkg} }

// Err returns all of them, joined; nil if there are none.
func (f *Faults) Err() error { return errors.Join(f.errs...) }

// Join adds what a configuration within this one found; nil is nothing.
func (f *Faults) Join(err error) {
	if err != nil {
		f.errs = append(f.errs, err)
	}
}

// Add says something about a field.
func (f *Faults) Add(field, format string, args ...any) {
	f.errs = append(f.errs, Fault{Package: f.pkg, Field: field, Text: ": " + fmt.Sprintf(format, args...)})
}

// Refuse says what a field is, and what it must be.
func (f *Faults) Refuse(field string, v any, must string) {
	f.errs = append(f.errs, Fault{Package: f.pkg, Field: field, Text: fmt.Sprintf(" is %v, it must be %s", v, must)})
}

// Int checks that least <= v <= most.
func (f *Faults) Int(field string, v, least, most int) {
	within(f, field, v, least, most, strconv.Itoa)
}

// Bytes checks that least <= v <= most.
func (f *Faults) Bytes(field string, v, least, most int64) {
	within(f, field, v, least, most, func(n int64) string { return units.Bytes(n).String() })
}

// Duration checks that least <= v <= most.
func (f *Faults) Duration(field string, v, least, most time.Duration) {
	within(f, field, v, least, most, func(d time.Duration) string { return units.Duration(d).String() })
}

// Float checks that least <= v <= most. Not a number is none.
func (f *Faults) Float(field string, v, least, most float64) {
	within(f, field, v, least, most, func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) })
}

func within[T int | int64 | time.Duration | float64](f *Faults, field string, v, least, most T, text func(T) string) {
	open := most == T(Open)
	switch {
	case v >= least && (v <= most || open):
	case open && least > 0 && least/2 == 0: // the least of its type
		f.Refuse(field, text(v), "above 0")
	case open:
		f.Refuse(field, text(v), "at least "+text(least))
	default:
		f.Refuse(field, text(v), text(least)+" to "+text(most))
	}
}
