package sqlserver

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"scribe/columnar/sql"
	"scribe/consumer"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/internal/role/restrict"
)

// tailRequest is a parsed request for a tail.
type tailRequest struct {
	category string
	start    consumer.Start
	where    string
	keys     []string
	limit    int64 // 0 = none
	untilEnd bool
	events   bool // server-sent events, else JSON lines
	// limits are the rows and columns to which the caller is limited; nil = all.
	limits *restrict.Restriction
}

// tailParameters are the valid names in the URL or the body of a tail.
var tailParameters = []string{"from", "where", "key", "limit", "until_end"}

// maxTailKeys bounds the keys of a tail.
const maxTailKeys = 100

// parseRequest parses the request of a tail.
func (t *runningTail) parseRequest(r *http.Request) error {
	t.req = &tailRequest{category: r.PathValue("category"), start: consumer.Latest()}
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		t.w.Header().Set("Allow", "GET, POST")
		return newStatusError(http.StatusMethodNotAllowed, "%s is neither GET nor POST", r.Method)
	}
	if !r.ProtoAtLeast(1, 1) {
		return newStatusError(http.StatusHTTPVersionNotSupported, "%s can't tell an answer that was cut from a whole one: use HTTP/1.1 or later", r.Proto)
	}
	if err := record.ValidateCategory(t.req.category); err != nil {
		return errorf(KindInvalid, "%v", err)
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return errorf(KindInvalid, "the parameters of the URL: %v", err)
	}
	if r.Method == http.MethodPost {
		if err := readTailBody(t.w, r, values); err != nil {
			return err
		}
	}
	if err := t.req.setParameters(values, t.g.now()); err != nil {
		return err
	}
	if t.req.events, err = acceptsEvents(r.Header.Values("Accept")); err != nil {
		return err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" { // a browser that reconnects asks with the URL that it had
		if t.req.start, err = consumer.Checkpoint(id); err != nil {
			return errorf(KindInvalid, "the header Last-Event-ID: %s", clientText(err))
		}
	}
	return nil
}

// readTailBody adds the body's values to the parameters of the URL, which has no room for the checkpoint of thousands of shards.
func readTailBody(w http.ResponseWriter, r *http.Request, values url.Values) error {
	body, media, err := readBody(w, r)
	if err != nil {
		return err
	}
	var more url.Values
	switch media {
	case "application/json":
		more, err = new(httpRequest).jsonParameters(body)
		if e, ok := errors.AsType[*Error](err); ok && e.Hint != "" {
			e.Hint = `send {"from": "CHECKPOINT"}`
		}
	case "application/x-www-form-urlencoded":
		if more, err = url.ParseQuery(string(body)); err != nil {
			err = errorf(KindInvalid, "read the form: %v", err)
		}
	default:
		return newStatusError(http.StatusUnsupportedMediaType, "invalid Content-Type %q: want application/x-www-form-urlencoded or application/json", shortenText(media))
	}
	if err != nil {
		return err
	}
	return addParameters(values, more)
}

func (t *tailRequest) setParameters(values url.Values, now time.Time) (err error) {
	for name, v := range values {
		if !slices.Contains(tailParameters, name) {
			return errorf(KindInvalid, "unknown parameter %q: want %s", name, strings.Join(tailParameters, ", "))
		}
		if len(v) > 1 && name != "key" {
			return errorf(KindInvalid, "%q is given %d times", name, len(v))
		}
	}
	if t.start, err = parseTailStart(values.Get("from"), now); err != nil {
		return err
	}
	if t.where = strings.TrimSpace(values.Get("where")); t.where != "" {
		if len(t.where) > MaxText || !utf8.ValidString(t.where) {
			return errorf(KindInvalid, "where: want at most %d bytes of UTF-8", MaxText)
		}
		if _, err := sql.ParsePredicate(t.where); err != nil {
			return clientError(err)
		}
	}
	if t.keys = values["key"]; len(t.keys) > maxTailKeys {
		return errorf(KindInvalid, "%d keys are given, at most %d are allowed", len(t.keys), maxTailKeys)
	}
	if v := values.Get("limit"); v != "" {
		if t.limit, err = strconv.ParseInt(v, 10, 64); err != nil || t.limit < 1 {
			return errorf(KindInvalid, "invalid limit %q: want a number of messages above 0", v)
		}
	}
	t.untilEnd, err = parseSwitch("until_end", values.Get("until_end"))
	return err
}

// parseTailStart returns where a tail begins.
func parseTailStart(text string, now time.Time) (consumer.Start, error) {
	switch text {
	case "", fromLatest:
		return consumer.Latest(), nil
	case fromEarliest:
		return consumer.Earliest(), nil
	}
	switch place, err := parsePlace(text); {
	case err != nil:
		return consumer.Start{}, err
	case place != nil:
		return *place, nil
	}
	at, err := parseTime("from", text, now)
	if err != nil {
		return consumer.Start{}, errorf(KindInvalid, "invalid from %q: want earliest, latest, %s or a checkpoint", shortenText(text), units.TimeHelp)
	}
	return consumer.At(at), nil
}

// parsePlace returns the checkpoint that a text is, nil if it is none.
func parsePlace(text string) (*consumer.Start, error) {
	if !strings.HasPrefix(text, "scribe") { // a time never begins so
		return nil, nil
	}
	start, err := consumer.Checkpoint(strings.ReplaceAll(text, " ", "+")) // in a URL an unescaped plus means a space
	if err != nil {
		return nil, errorf(KindInvalid, "from: %s", clientText(err))
	}
	return &start, nil
}

// shortenText cuts a text for an error.
func shortenText(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// acceptsEvents reports whether the client prefers server-sent events to JSON lines, which it gets if it names nothing.
func acceptsEvents(headers []string) (bool, error) {
	events, lines, named := 0.0, 0.0, false
	for name, quality := range acceptedEntries(headers) {
		named = true
		switch name {
		case "text/event-stream":
			events = max(events, quality)
		case "application/x-ndjson", "application/jsonl", "application/x-jsonlines", "application/*", "*/*":
			lines = max(lines, quality)
		}
	}
	if named && events == 0 && lines == 0 {
		return false, newStatusError(http.StatusNotAcceptable, "Accept has neither text/event-stream nor application/x-ndjson: ask for one of them")
	}
	return events > 0 && events >= lines, nil
}
