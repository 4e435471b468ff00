package pebblekv

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"scribe/storage/kv"
)

// Golden forms of version 1: a program that changes them cannot read the stores of before.
const (
	goldenValue = "01000000" + "19e8fea0" + "0201000000000000" + "76616c7565"
	goldenState = "53434b56" + "01000000" + "0201000000000000" + "6a495b5c"
)

func TestGolden(t *testing.T) {
	value := appendStored(nil, "key", 258, []byte("value"))
	if got := hex.EncodeToString(value); got != goldenValue {
		t.Errorf("value %s, want %s", got, goldenValue)
	}
	revision, v, err := parseValue("key", value)
	if err != nil || revision != 258 || string(v) != "value" {
		t.Errorf("%d %q %v", revision, v, err)
	}
	state := encodeState(258)
	if got := hex.EncodeToString(state); got != goldenState {
		t.Errorf("state %s, want %s", got, goldenState)
	}
	if revision, err := parseState(state); err != nil || revision != 258 {
		t.Errorf("%d %v", revision, err)
	}
}

// TestDamage flips every bit: none goes unnoticed.
func TestDamage(t *testing.T) {
	value := appendStored(nil, "key", 258, []byte("value"))
	state := encodeState(258)
	if _, _, err := parseValue("kez", value); !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("another key's value: %v", err)
	}
	for bit := range len(value) * 8 {
		b := bytes.Clone(value)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := parseValue("key", b); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("bit %d of a value: %v", bit, err)
		}
	}
	for bit := range len(state) * 8 {
		b := bytes.Clone(state)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := parseState(b); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("bit %d of the state: %v", bit, err)
		}
	}
	for n := range len(value) {
		if _, _, err := parseValue("key", value[:n]); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%d bytes of a value: %v", n, err)
		}
	}
	for n := range len(state) {
		if _, err := parseState(state[:n]); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%d bytes of the state: %v", n, err)
		}
	}
	newer := bytes.Clone(state)
	newer[4] = 2
	if _, err := parseState(newer); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer store: %v", err)
	}
}

func FuzzParseValue(f *testing.F) {
	f.Add("key", appendStored(nil, "key", 258, []byte("value")))
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, key string, stored []byte) {
		revision, value, err := parseValue(key, stored)
		if err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Fatalf("%v does not match ErrCorrupt", err)
			}
			return
		}
		if !bytes.Equal(appendStored(nil, key, revision, value), stored) {
			t.Fatal("a value has two forms")
		}
	})
}

func FuzzParseState(f *testing.F) {
	f.Add(encodeState(258))
	f.Fuzz(func(t *testing.T, stored []byte) {
		revision, err := parseState(stored)
		if err == nil && !bytes.Equal(encodeState(revision), stored) {
			t.Fatal("a state has two forms")
		}
	})
}
