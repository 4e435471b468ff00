package value_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"pgregory.net/rapid"

	"scribe/columnar/value"
)

func TestTimestamps(t *testing.T) {
	for in, want := range map[string]string{
		"2024-02-29":                       "2024-02-29 00:00:00+00",
		" 2024-02-29 23:59:59.9999996 ":    "2024-03-01 00:00:00+00",
		"2024-1-5T01:02":                   "2024-01-05 01:02:00+00",
		"20240105":                         "2024-01-05 00:00:00+00",
		"2024-01-05 01:02:03.5+02":         "2024-01-04 23:02:03.5+00",
		"2024-01-05 01:02:03.5 -0230":      "2024-01-05 03:32:03.5+00",
		"2024-01-05T01:02:03Z":             "2024-01-05 01:02:03+00",
		"2024-01-05 24:00:00":              "2024-01-06 00:00:00+00",
		"2024-01-05 23:59:60":              "2024-01-06 00:00:00+00",
		"0044-03-15 BC":                    "0044-03-15 00:00:00+00 BC",
		"10000-01-01 00:00:00.000001":      "10000-01-01 00:00:00.000001+00",
		"294247-01-10 04:00:54.775807":     "294247-01-10 04:00:54.775807+00",
		"epoch":                            "1970-01-01 00:00:00+00",
		"4714-11-24 BC":                    "4714-11-24 00:00:00+00 BC",
		"294247-01-10 04:00:54.775808":     "",
		"4714-11-23 23:59:59 BC":           "",
		"2023-02-29":                       "",
		"2024-13-01":                       "",
		"2024-01-05 24:00:01":              "",
		"2024-01-05 12:60":                 "",
		"24-01-05":                         "",
		"2024-01-05x":                      "",
		"2024-01-05 12":                    "",
		"2024-01-05 12:00:00 CET":          "",
		"infinity":                         "",
		"":                                 "",
		"0000-01-01":                       "",
		"99999999999999999999-01-01":       "",
		"2024-01-05 01:02:03.000000000000": "2024-01-05 01:02:03+00",
	} {
		v, err := value.ParseTimestamp(in)
		got := ""
		if err == nil {
			got = string(value.AppendTimestamp(nil, v))
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q", in, got, want)
		}
	}
}

func TestTimestampsAgreeWithTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64Range(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()).Draw(t, "v")
		at := time.UnixMicro(v).UTC()
		days, micros := value.Split(arrow.Timestamp(v))
		year, month, day := value.CivilOf(days)
		if int(year) != at.Year() || month != int(at.Month()) || day != at.Day() {
			t.Fatalf("%v is %d-%d-%d", at, year, month, day)
		}
		if value.DaysOf(year, int64(month), int64(day)) != days {
			t.Fatalf("%d-%d-%d is not day %d", year, month, day, days)
		}
		if want := at.Format("15:04:05.999999"); string(value.AppendTimestamp(nil, arrow.Timestamp(v))) != at.Format("2006-01-02 ")+want+"+00" || micros < 0 {
			t.Fatalf("%v is written %s", at, value.AppendTimestamp(nil, arrow.Timestamp(v)))
		}
		back, err := value.ParseTimestamp(value.AppendTimestamp(nil, arrow.Timestamp(v)))
		if err != nil || back != arrow.Timestamp(v) {
			t.Fatalf("%v is read back as %d: %v", at, back, err)
		}
	})
}

func TestIntervals(t *testing.T) {
	for in, want := range map[string]string{
		"1 day":                       "1 day",
		"1 year 2 mons 3 days -4:05":  "1 year 2 mons 3 days -04:05:00",
		"-1 day +2:03:04.5":           "-1 days +02:03:04.5",
		"1.5 days":                    "1 day 12:00:00",
		"1.5 months":                  "1 mon 15 days",
		"1.5 years":                   "1 year 6 mons",
		"3":                           "00:00:03",
		"-.5s":                        "",
		"1 week ago":                  "-7 days",
		"100:00:00":                   "100:00:00",
		"P1Y2M3W4DT5H6M7.8S":          "1 year 2 mons 25 days 05:06:07.8",
		"1 decade 1 century":          "110 years",
		"2 mils":                      "2000 years",
		"10 microseconds":             "00:00:00.00001",
		"1 fortnight":                 "",
		"ago":                         "",
		"":                            "",
		"1 day 2":                     "1 day 00:00:02",
		"9999999999 years":            "",
		"178956971 years":             "",
		"99999999999999999999 sec":    "",
		"3000000 hours":               "",
		"-14 months":                  "-1 years -2 mons",
		"1 year -13 months":           "-1 mons",
		"PT":                          "00:00:00",
		"1 day 1 day":                 "",
		"1-2":                         "1 year 2 mons",
		"-1-2 3":                      "-1 years -2 mons +00:00:03",
		"1-12":                        "",
		"@ 1 day":                     "1 day",
		"P":                           "",
		"0":                           "00:00:00",
		"1 mon -1 days":               "1 mon -1 days",
		"-1 mon 1 day":                "-1 mons +1 day",
		"99999999999999999999999 day": "",
	} {
		v, err := value.ParseInterval(in)
		got := ""
		if err == nil {
			got = string(value.AppendInterval(nil, v))
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q (%v)", in, got, want, err)
		}
	}
}

func TestNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"1": "1.00", "1.005": "1.01", "-1.005": "-1.01", "0.004": "0.00", "-0.004": "0.00", "1e2": "100.00", ".5": "0.50", "5.": "5.00",
		"12345678901234567890123456789012345678e-2": "123456789012345678901234567890123456.78",
		"999999999999999999999999999999999999.994":  "999999999999999999999999999999999999.99",
		"999999999999999999999999999999999999.995":  "", "1e40": "", "1e-99999999999999999999": "0.00", "0e99999999999": "0.00", "1e36": "",
		"": "", ".": "", "1e": "", "1 2": "", "NaN": "", "0x1": "", "1_0": "", "00000000000000000000000000000000000000000000001": "1.00",
		"0.005": "0.01", "0.00499999": "0.00", "9e-3": "0.01", "9e-4": "0.00", "170141183460469231731687303715884105728": "",
	} {
		v, err := value.ParseDecimal(in, 38, 2)
		got := ""
		if err == nil {
			got = string(value.AppendDecimal(nil, v, 2))
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q", in, got, want)
		}
	}
	for in, want := range map[float64]string{
		0: "0", math.Copysign(0, -1): "-0", 1e15: "1e+15", 123456789012345: "123456789012345", 1e-4: "0.0001", 1e-5: "1e-05", 1.5: "1.5",
		math.Inf(-1): "-Infinity", 1e300: "1e+300", math.NaN(): "NaN", 0.1: "0.1", 1e23: "9.999999999999999e+22", -1e23: "-9.999999999999999e+22",
		4.6116860162799043e18: "4.6116860162799043e+18", 1 << 53: "9.007199254740992e+15",
	} {
		if got := string(value.AppendFloat(nil, in)); got != want {
			t.Errorf("%g is written %q, want %q", in, got, want)
		}
	}
	for _, in := range []string{"1e400", "1e-400", "", "x", "1x", "0x1p3", "1_0", "--1"} {
		if v, err := value.ParseFloat(in); err == nil {
			t.Errorf("%q is read as the float %g", in, v)
		}
	}
}

func TestIntegersAgreeWithStrconv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`[+-]?[0-9]{0,22}x?`).Draw(t, "s")
		want, werr := strconv.ParseInt(s, 10, 64)
		if got, err := value.ParseInt(s, 64); got != want && err == nil || (err == nil) != (werr == nil) {
			t.Fatalf("%q is %d (%v), want %d (%v)", s, got, err, want, werr)
		}
		want, werr = strconv.ParseInt(s, 10, 32)
		if got, err := value.ParseInt([]byte(s), 32); got != want && err == nil || (err == nil) != (werr == nil) {
			t.Fatalf("%q is %d (%v), want %d (%v)", s, got, err, want, werr)
		}
	})
}

// TestNegativeScale: the digits are followed by as many zeros as a negative scale says.
func TestNegativeScale(t *testing.T) {
	for _, c := range []struct {
		v     string
		scale int32
		want  string
	}{
		{"0", -38, "0"},
		{"0", 0, "0"},
		{"7", -1, "70"},
		{"-12345678901", -38, "-12345678901" + strings.Repeat("0", 38)},
		{strings.Repeat("9", 38), -38, strings.Repeat("9", 38) + strings.Repeat("0", 38)},
		{"12", 0, "12"},
		{"12", 3, "0.012"},
	} {
		v, err := decimal128.FromString(c.v, 38, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(value.AppendDecimal([]byte("x"), v, c.scale)); got != "x"+c.want {
			t.Errorf("%s at scale %d: got %q, want %q", c.v, c.scale, got, c.want)
		}
	}
}

func TestDecimalsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.Int32Range(0, 38).Draw(t, "scale")
		v := decimal128.New(rapid.Int64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo"))
		if !value.FitsPrecision(v, 38) {
			t.Skip("too large")
		}
		s := value.AppendDecimal(nil, v, scale)
		if want := v.ToString(scale); string(s) != want && v != (decimal128.Num{}) {
			t.Fatalf("written %s, want %s", s, want)
		}
		back, err := value.ParseDecimal(s, 38, scale)
		if err != nil || back != v {
			t.Fatalf("%s is read back as %s: %v", s, back.ToString(scale), err)
		}
	})
}

func TestBoolsAndBinaries(t *testing.T) {
	for in, want := range map[string]string{
		"t": "true", "TRUE": "true", "y": "true", "on": "true", "1": "true", "f": "false", "of": "false", "no": "false", "0": "false",
		"o": "", "": "", "truee": "", "2": "",
	} {
		v, err := value.ParseBool(in)
		if got := strconv.FormatBool(v); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q is read as %v (%v), want %q", in, v, err, want)
		}
	}
	for in, want := range map[string]string{
		`\x00fF`: `\x00ff`, `\x 00 1`: "", `\x0`: "", `\xgg`: "", `abc`: `\x616263`, `a\\b`: `\x615c62`, `\001`: `\x01`, `\1`: "", `\x`: `\x`, ``: `\x`,
	} {
		v, err := value.ParseBinary(in)
		if got := string(value.AppendBinary(nil, v)); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q is read as %s (%v), want %q", in, got, err, want)
		}
	}
}

// FuzzParse reads any text as each type: what is read must be written so that it reads back the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"1.5e3", "2024-01-05 01:02:03.5+02", "1 year 2 mons -3.5 days 04:05", "P1Y2M", `\x00`, "true", "-inf", "99999-01-01 BC"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := value.ParseTimestamp(s); err == nil {
			if back, err := value.ParseTimestamp(value.AppendTimestamp(nil, v)); err != nil || back != v {
				t.Errorf("%q is the timestamp %d, which is read back as %d: %v", s, v, back, err)
			}
		}
		if v, err := value.ParseDate(s); err == nil {
			if back, err := value.ParseDate(value.AppendDate(nil, v)); err != nil || back != v {
				t.Errorf("%q is the date %d, which is read back as %d: %v", s, v, back, err)
			}
		}
		if v, err := value.ParseInterval(s); err == nil {
			if back, err := value.ParseInterval(value.AppendInterval(nil, v)); err != nil || back != v {
				t.Errorf("%q is the interval %v, which is read back as %v: %v", s, v, back, err)
			}
		}
		if v, err := value.ParseFloat(s); err == nil {
			if back, err := value.ParseFloat(value.AppendFloat(nil, v)); err != nil || back != v && v == v {
				t.Errorf("%q is the float %g, which is read back as %g: %v", s, v, back, err)
			}
		}
		if v, err := value.ParseBinary(s); err == nil {
			if back, err := value.ParseBinary(value.AppendBinary(nil, v)); err != nil || string(back) != string(v) {
				t.Errorf("%q is the binary %x, which is read back as %x: %v", s, v, back, err)
			}
		}
		if v, err := value.ParseDecimal(s, 20, 5); err == nil {
			if back, err := value.ParseDecimal(value.AppendDecimal(nil, v, 5), 20, 5); err != nil || back != v {
				t.Errorf("%q is a decimal that does not read back: %v", s, err)
			}
		}
		_, _ = value.ParseBool(s)
		_, _ = value.ParseUint(s)
	})
}
