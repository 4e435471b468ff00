package sqlserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"scribe/columnar/export"
	"scribe/columnar/sql"
	"scribe/internal/base/units"
)

// httpRequest is a parsed HTTP request.
type httpRequest struct {
	Request
	format   export.Format
	encoding string // content encoding; empty = none
	// values are those of the query's parameters.
	values []sql.Parameter
}

// newStatusError returns an error with an HTTP status that no Kind has.
func newStatusError(status int, format string, args ...any) error {
	err := errorf(KindInvalid, format, args...)
	err.status = status
	return err
}

// maxBody bounds a body: a query in which JSON may write every character as six.
const maxBody = 6*MaxText + 4<<10

// parameters are the valid names in the URL, a form or a JSON body.
var parameters = []string{"sql", "from", "to", "follow", "limit", "timeout", "format", "checkpoints", parameterValue}

// parameterValue is the parameter with the value of a parameter of the query. It may be given several times; in JSON it is a list.
const parameterValue = "param"

// bodyTimeout bounds the time in which a client sends its body.
const bodyTimeout = 30 * time.Second

// parseRequest parses a request. It reads the body to its end.
func parseRequest(w http.ResponseWriter, r *http.Request, now time.Time) (*httpRequest, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		w.Header().Set("Allow", "GET, POST")
		return nil, newStatusError(http.StatusMethodNotAllowed, "%s is neither GET nor POST", r.Method)
	}
	if !r.ProtoAtLeast(1, 1) {
		return nil, newStatusError(http.StatusHTTPVersionNotSupported, "%s can't tell an answer that was cut from a whole one: use HTTP/1.1 or later", r.Proto)
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errorf(KindInvalid, "the parameters of the URL: %v", err)
	}
	a := &httpRequest{}
	if r.Method == http.MethodPost {
		if err := a.readParameters(w, r, values); err != nil {
			return nil, err
		}
	}
	if err := a.setParameters(values, now); err != nil {
		return nil, err
	}
	if a.format == "" {
		if a.format, err = acceptedFormat(r.Header.Values("Accept")); err != nil {
			return nil, err
		}
	}
	if a.Checkpoints && a.format != export.JSONLines {
		return nil, &Error{Kind: KindInvalid, Message: "checkpoints are lines between rows that are lines", Hint: "ask for JSON lines: format=jsonl"}
	}
	a.encoding = acceptedEncoding(r.Header.Values("Accept-Encoding"))
	return a, nil
}

// readBody returns the body, and the media type that it is said to have, text/plain if nothing is said.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, media string, err error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // without support for deadlines there is no limit
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if tooLong, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, "", errorf(KindTooLarge, "the body is longer than %d bytes", tooLong.Limit)
	}
	if err != nil {
		return nil, "", errorf(KindInvalid, "read the body: %v", err)
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, "", newStatusError(http.StatusUnsupportedMediaType, "Content-Encoding %q: send the body as it is", enc)
	}
	media = "text/plain"
	if t := r.Header.Get("Content-Type"); t != "" {
		if media, _, err = mime.ParseMediaType(t); err != nil {
			return nil, "", newStatusError(http.StatusUnsupportedMediaType, "Content-Type %q: %v", t, err)
		}
	}
	return body, media, nil
}

// addParameters adds the body's values to the parameters of the URL.
func addParameters(values, more url.Values) error {
	for name, v := range more {
		if values.Has(name) {
			return errorf(KindInvalid, "%.100q is both in the URL and in the body", name)
		}
		values[name] = v
	}
	return nil
}

// readParameters adds what the body of a query says to the parameters of the URL.
func (a *httpRequest) readParameters(w http.ResponseWriter, r *http.Request, values url.Values) error {
	body, media, err := readBody(w, r)
	if err != nil {
		return err
	}
	var more url.Values
	switch media {
	case "application/json":
		more, err = a.jsonParameters(body)
	case "application/x-www-form-urlencoded":
		more, err = formParameters(body)
	case "text/plain", "application/sql":
		if len(bytes.TrimSpace(body)) > 0 {
			more = url.Values{"sql": {string(body)}}
		}
	default:
		return newStatusError(http.StatusUnsupportedMediaType, "invalid Content-Type %q: want application/sql, text/plain, application/json or application/x-www-form-urlencoded", media)
	}
	if err != nil {
		return err
	}
	return addParameters(values, more)
}

func (a *httpRequest) jsonParameters(body []byte) (url.Values, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var object map[string]any
	if err := dec.Decode(&object); err != nil {
		return nil, &Error{Kind: KindInvalid, Message: fmt.Sprintf("the body is not a JSON object: %v", err), Hint: `send {"sql": "SELECT ..."}`}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errorf(KindInvalid, "the body has more than one JSON object")
	}
	values := url.Values{}
	for name, v := range object {
		if list, ok := v.([]any); ok && name == parameterValue {
			if err := a.addValues(list); err != nil {
				return nil, err
			}
			values[name] = nil // it is given
			continue
		}
		switch v := v.(type) {
		case nil:
		case string:
			values.Set(name, v)
		case json.Number:
			values.Set(name, v.String())
		case bool:
			values.Set(name, strconv.FormatBool(v))
		default:
			return nil, errorf(KindInvalid, "invalid %q in the body: want a string, a number or a boolean", name)
		}
	}
	return values, nil
}

// addValues adds the values of parameters in a JSON list.
func (a *httpRequest) addValues(list []any) error {
	for i, v := range list {
		var p sql.Parameter
		switch v := v.(type) {
		case nil:
			p.Null = true
		case string:
			p.Text = v
		case json.Number:
			p = sql.Parameter{Type: sql.NumberType, Text: v.String()}
		case bool:
			p = sql.Parameter{Type: "boolean", Text: strconv.FormatBool(v)}
		default:
			return errorf(KindInvalid, "invalid element %d of %q in the body: want a string, a number, a boolean or null", i+1, parameterValue)
		}
		a.values = append(a.values, p)
	}
	return nil
}

func formParameters(body []byte) (url.Values, error) {
	values, err := url.ParseQuery(string(body))
	if err != nil || !values.Has("sql") {
		return nil, &Error{
			Kind: KindInvalid, Message: "the body is a form without a field sql",
			Hint: "with curl: --data-urlencode 'sql=SELECT ...', or -H 'Content-Type: application/sql' --data-binary 'SELECT ...'",
		}
	}
	return values, nil
}

// setParameters sets the request's fields from its parameters.
func (a *httpRequest) setParameters(values url.Values, now time.Time) error {
	for name, v := range values {
		if !slices.Contains(parameters, name) {
			return errorf(KindInvalid, "unknown parameter %q: want %s", name, strings.Join(parameters, ", "))
		}
		if name == parameterValue {
			for _, text := range v {
				a.values = append(a.values, sql.Parameter{Text: text})
			}
			continue
		}
		if len(v) > 1 {
			return errorf(KindInvalid, "%q is given %d times", name, len(v))
		}
	}
	switch f := export.Format(values.Get("format")); f {
	case "", export.Arrow, export.JSONLines, export.CSV:
		a.format = f
	default:
		return errorf(KindInvalid, "invalid format %q: want arrow, jsonl or csv", f)
	}
	var err error
	if a.Checkpoints, err = parseSwitch("checkpoints", values.Get("checkpoints")); err != nil {
		return err
	}
	if err := a.setFields(values.Get, now); err != nil {
		return err
	}
	return a.bindValues(a.values)
}

// bindValues puts the values of parameters into the query's text.
func (r *Request) bindValues(values []sql.Parameter) error {
	if len(values) == 0 || r.SQL == "" {
		return nil
	}
	bound, err := sql.BindParameters(r.SQL, values)
	if err != nil {
		return clientError(err)
	}
	r.SQL, r.Bound = bound, true
	return nil
}

// setFields sets a request's fields from text: parameters of an HTTP request, or headers of a call.
func (r *Request) setFields(get func(string) string, now time.Time) (err error) {
	r.SQL = strings.TrimSpace(get("sql"))
	if !utf8.ValidString(r.SQL) {
		return errorf(KindInvalid, "the query is not UTF-8")
	}
	if r.Follow, err = parseSwitch("follow", get("follow")); err != nil {
		return err
	}
	switch v := get("from"); v {
	case "", fromEarliest, fromLatest:
		r.From = v
	default:
		if r.Place, err = parsePlace(v); r.Place == nil && err == nil {
			r.FromTime, err = parseTime("from", v, now)
		}
		if err != nil {
			return err
		}
	}
	if v := get("to"); v != "" && v != "now" {
		if r.To, err = parseTime("to", v, now); err != nil {
			return err
		}
		if r.Follow {
			return errorf(KindInvalid, "a query that follows has no end: give either to or follow")
		}
	}
	r.Limit = -1
	if v := get("limit"); v != "" {
		if r.Limit, err = strconv.ParseInt(v, 10, 64); err != nil || r.Limit < 0 {
			return errorf(KindInvalid, "invalid limit %q: want a number of rows", v)
		}
	}
	if v := get("timeout"); v != "" {
		d, err := units.ParseDuration(v)
		if err != nil || d <= 0 {
			return errorf(KindInvalid, "timeout: %q is not a duration above zero: write a number and a unit, such as 30s", v)
		}
		r.Timeout = d.Std()
	}
	return nil
}

// parseSwitch parses what is on or off.
func parseSwitch(name, v string) (on bool, err error) {
	switch v {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	}
	return false, errorf(KindInvalid, "invalid %s %q: want 1, true, 0 or false", name, v)
}

// parseTime parses an instant, or an age.
func parseTime(name, v string, now time.Time) (time.Time, error) {
	// In a URL an unescaped plus means a space.
	for _, text := range []string{strings.ReplaceAll(v, " ", "+"), v} {
		if t, err := units.ParseTime(text, now); err == nil {
			return t, nil
		}
	}
	more := ""
	if name == "from" {
		more = "earliest, latest, "
	}
	return time.Time{}, errorf(KindInvalid, "invalid %s %q: want %s%s", name, v, more, units.TimeHelp)
}

// acceptedFormat returns the client's preferred format; JSON lines if it names none.
func acceptedFormat(headers []string) (export.Format, error) {
	media := map[string]export.Format{
		"application/vnd.apache.arrow.stream": export.Arrow, "application/x-ndjson": export.JSONLines, "application/jsonl": export.JSONLines,
		"application/x-jsonlines": export.JSONLines, "text/csv": export.CSV,
		"application/*": export.JSONLines, "text/*": export.CSV, "*/*": export.JSONLines,
	}
	var best export.Format
	most, said := 0.0, false
	for name, quality := range acceptedEntries(headers) {
		said = true
		if f, ok := media[name]; ok && quality > most {
			best, most = f, quality
		}
	}
	switch {
	case !said:
		return export.JSONLines, nil
	case best == "":
		return "", newStatusError(http.StatusNotAcceptable, "Accept has none of application/vnd.apache.arrow.stream, application/x-ndjson, text/csv: ask for one of them, or with format=arrow, jsonl or csv")
	default:
		return best, nil
	}
}

// acceptedEncoding returns the compression of the answer, one that the client names.
func acceptedEncoding(headers []string) string {
	best := ""
	most := 0.0
	for name, quality := range acceptedEntries(headers) {
		if name == "x-gzip" {
			name = "gzip"
		}
		if slices.Contains(encodings, name) && quality > 0 && (quality > most || quality == most && name == encodings[0]) {
			best, most = name, quality
		}
	}
	return best
}

// acceptedEntries yields the entries of headers as in RFC 9110, section 12.5, with their qualities, in order.
func acceptedEntries(headers []string) func(yield func(string, float64) bool) {
	return func(yield func(string, float64) bool) {
		for _, h := range headers {
			for part := range strings.SplitSeq(h, ",") {
				name, rest, _ := strings.Cut(part, ";")
				name = strings.ToLower(strings.TrimSpace(name))
				if name == "" {
					continue
				}
				quality := 1.0
				for param := range strings.SplitSeq(rest, ";") {
					if v, ok := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(param), " ", ""), "q="); ok {
						if f, err := strconv.ParseFloat(v, 64); err == nil && f >= 0 && f <= 1 {
							quality = f
						}
					}
				}
				if !yield(name, quality) {
					return
				}
			}
		}
	}
}
