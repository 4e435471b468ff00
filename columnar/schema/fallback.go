package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"scribe/columnar/value"
)

// checkDefault checks the default of a field. It must be a value of the field's type, written as rows write it.
func (v *schemaValidator) checkDefault(f *Field, where string) {
	switch {
	case f.Default == "":
		return
	case len(f.Default) > MaxDefault || !utf8.ValidString(f.Default):
		v.failField(f, where, "", "invalid default: want at most %d bytes of UTF-8", MaxDefault)
		return
	}
	d := json.NewDecoder(strings.NewReader(f.Default))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil || d.InputOffset() != int64(len(f.Default)) {
		v.failField(f, where, "", "invalid default %s: want JSON", clipText(f.Default))
		return
	}
	if value == nil {
		v.failField(f, where, "leave it out: a row without the value has null anyway", "the default is null")
		return
	}
	if err := checkValue(&f.Type, value); err != nil {
		v.failField(f, where, "", "invalid default %s for %s: %v", clipText(f.Default), f.Type.Kind, err)
	}
}

// checkValue returns an error if a JSON value does not fit a type.
func checkValue(t *Type, value any) error {
	if value == nil {
		return nil
	}
	text, isText := value.(string)
	number, isNumber := value.(json.Number)
	switch t.Kind { //nolint:exhaustive // a kind that columns don't have is reported elsewhere
	case List:
		list, ok := value.([]any)
		if !ok {
			return errors.New("want a list")
		}
		return checkElements(t, slices.Values(list))
	case Map, Struct:
		object, ok := value.(map[string]any)
		if !ok {
			return errors.New("want an object")
		}
		if t.Kind == Map {
			return checkElements(t, maps.Values(object))
		} // the members of a struct are looked up by the fields' paths, as in a row
	case Bool:
		if _, ok := value.(bool); !ok {
			return errors.New("want true or false")
		}
	case Int32, Int64, Uint64, Decimal, Float64:
		if !isNumber {
			return errors.New("want a number")
		}
		return checkNumber(t, number.String())
	case Date, Timestamp:
		if isNumber {
			text = number.String()
		}
		for _, format := range t.TimeFormats() {
			if _, unix := format.Unix(); isText || isNumber && unix {
				if _, ok := format.Parse(text); ok {
					return nil
				}
			}
		}
		return fmt.Errorf("want a time in the format %s", formatList(t))
	case String, Binary:
		if !isText {
			return errors.New("want a text in quotes")
		}
	}
	return nil
}

// checkElements returns an error if an element of a list or a value of a map does not fit.
func checkElements(t *Type, values iter.Seq[any]) error {
	for item := range values {
		if err := checkValue(t.Elem, item); err != nil {
			return err
		}
	}
	return nil
}

// checkNumber returns an error if a number does not fit a type of numbers.
func checkNumber(t *Type, text string) error {
	if t.Kind == Float64 {
		if f, err := strconv.ParseFloat(text, 64); err != nil || math.IsInf(f, 0) {
			return fmt.Errorf("the number is too large")
		}
		return nil
	}
	if exponent := strings.IndexAny(text, "eE"); exponent >= 0 {
		if e, err := strconv.Atoi(text[exponent+1:]); err != nil || e > 40 || e < -40 {
			return fmt.Errorf("the exponent is too large")
		}
	}
	if len(text) > 100 {
		return fmt.Errorf("too many digits")
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return fmt.Errorf("want a number")
	}
	if t.Kind == Decimal {
		scaled := new(big.Rat).Mul(r, new(big.Rat).SetInt(value.PowerOfTen(t.Scale)))
		if !scaled.IsInt() {
			return fmt.Errorf("more than %d digits after the point", t.Scale)
		}
		if scaled.Num().CmpAbs(value.PowerOfTen(t.Precision)) >= 0 {
			return fmt.Errorf("more than %d digits", t.Precision)
		}
		return nil
	}
	if !r.IsInt() {
		return fmt.Errorf("want an integer")
	}
	n := r.Num()
	switch {
	case t.Kind == Int32 && (!n.IsInt64() || n.Int64() < math.MinInt32 || n.Int64() > math.MaxInt32),
		t.Kind == Int64 && !n.IsInt64(), t.Kind == Uint64 && !n.IsUint64():
		return fmt.Errorf("out of range")
	}
	return nil
}

// formatList returns the formats of a type, for errors.
func formatList(t *Type) string {
	var names []string
	for _, f := range t.TimeFormats() {
		names = append(names, string(f))
	}
	return strings.Join(names, " or ")
}
