package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Every unary call can be made by hand, with bytes as base64 or as text.
func TestJSON(t *testing.T) {
	var got proto.Message
	f := &fake{unary: func(_ context.Context, req proto.Message) (proto.Message, error) {
		got = proto.Clone(req)
		switch req := req.(type) {
		case *scribev1.CreateCategoryRequest:
			if req.GetCategory().GetName() == "" {
				return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "category.name is empty")
			}
			return &scribev1.CreateCategoryResponse{Category: req.GetCategory()}, nil
		case *scribev1.PublishRequest:
			return &scribev1.PublishResponse{Count: uint32(len(req.GetMessages())), Shard: 1 << 40}, nil
		}
		return nil, nil
	}}
	e := start(t, "tcp", f.services())
	for _, c := range []struct {
		procedure, body string
		want            proto.Message
		status          int
		answer          string
	}{
		{
			"ControlService/CreateCategory", `{"category":{"name":"web.access","retention":"259200s","shards":4,"delivery":"DELIVERY_EXACTLY_ONCE"},"ifNotExists":true}`,
			&scribev1.CreateCategoryRequest{IfNotExists: true, Category: &scribev1.Category{
				Name: "web.access", Retention: durationpb.New(72 * 3600e9), Shards: 4, Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE,
			}},
			200, `{"category":{"name":"web.access","retention":"259200s","shards":4,"delivery":"DELIVERY_EXACTLY_ONCE"}}`,
		},
		{
			"WriteService/Publish", `{"category":"c","messages":[{"text":"grüße"},{"payload":"AAH/","key":"","attributes":{"trace":"QUI="}}],"ack":"ACK_LEVEL_COMMITTED"}`,
			&scribev1.PublishRequest{Category: "c", Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED, Messages: []*scribev1.PublishMessage{
				{Content: &scribev1.PublishMessage_Text{Text: "grüße"}},
				{Content: &scribev1.PublishMessage_Payload{Payload: []byte{0, 1, 255}}, Key: []byte{}, Attributes: map[string][]byte{"trace": []byte("AB")}},
			}},
			200, `{"count":2,"shard":"1099511627776"}`,
		},
		{"WriteService/Write", `{"frames":"U0NSRg==","ack":"ACK_LEVEL_NONE"}`, &scribev1.WriteRequest{Frames: []byte("SCRF"), Ack: scribev1.AckLevel_ACK_LEVEL_NONE}, 200, `{}`},
		{"ReadProxyService/Fetch", `{"pointers":["AQ=="]}`, &scribev1.FetchRequest{Pointers: [][]byte{{1}}}, 200, `{}`},
		{"ControlService/GetStatus", `{}`, &scribev1.GetStatusRequest{}, 200, `{}`},
		{
			"ControlService/CreateCategory", `{}`, &scribev1.CreateCategoryRequest{}, 400,
			`{"code":"invalid_argument","message":"category.name is empty","details":[{"type":"scribe.v1.ErrorInfo","value":"CBASFmNhdGVnb3J5Lm5hbWUgaXMgZW1wdHk","debug":{"reason":"REASON_INVALID","message":"category.name is empty"}}]}`,
		},
	} {
		got = nil
		res := e.post(t, c.procedure, "application/json; charset=utf-8", strings.NewReader(c.body))
		answer, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != c.status || !sameJSON(answer, []byte(c.answer)) {
			t.Errorf("%s %s: %s %s, %v", c.procedure, c.body, res.Status, answer, err)
		}
		if !proto.Equal(got, c.want) {
			t.Errorf("%s %s arrived as %v", c.procedure, c.body, got)
		}
	}
	// Mistakes are named.
	for body, want := range map[string]string{
		"": "at least {}",
		`{"category":{},` + "\n" + ` "if_nots_exists":true}`: `(line 2:2): unknown field`,
		`{"category":{"nmae":"x"}}`:                          "nmae",
		"{":                                                  "unexpected EOF",
		`{"category":{"shards":"x"}}`:                        "shards",
		`{"category":{"retention":3}}`:                       "line 1:26",
	} {
		res := e.post(t, "ControlService/CreateCategory", "application/json", strings.NewReader(body))
		if answer, _ := io.ReadAll(res.Body); res.StatusCode != 400 || !strings.Contains(string(answer), want) || !strings.Contains(string(answer), "invalid_argument") {
			t.Errorf("%s: %s %s", body, res.Status, answer)
		}
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// The documented command works as it stands, where there is a curl.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Log("no curl here: TestJSON sends the same")
		return
	}
	var b budget
	s := admitting(&b)
	e := start(t, "tcp", s)
	run := func(stdin io.Reader, args ...string) string {
		cmd := exec.CommandContext(t.Context(), curl, append([]string{"-sS", "-H", "Content-Type: application/json"}, args...)...)
		cmd.Stdin = stdin
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("curl %s: %v: %s", args, err, stderr.String())
		}
		return string(out)
	}
	url := "http://" + e.url + "/scribe.v1."
	if out := run(nil, "-d", `{"category":{"name":"web.access"}}`, url+"ControlService/CreateCategory"); out != "{}" {
		t.Errorf("create: %s", out)
	}
	large := func() io.Reader { return bytes.NewReader(make([]byte, 32<<20)) }
	for _, args := range [][]string{
		{"--data-binary", "@-"}, {"--data-binary", "@-", "-H", "Expect:"}, {"-T", "-", "-X", "POST"},
	} {
		if out := run(large(), append(args, url+"WriteService/Write")...); !strings.Contains(out, `"reason":"REASON_OVERLOADED"`) || !strings.Contains(out, "resource_exhausted") {
			t.Errorf("%s: %s", args, out)
		}
	}
}

// The adapters work over a client of the caller's, here one with TLS, and over HTTP/2 throughout.
func TestOverClient(t *testing.T) {
	mux := http.NewServeMux()
	f := &fake{unary: func(_ context.Context, req proto.Message) (proto.Message, error) {
		if w, ok := req.(*scribev1.WriteRequest); ok {
			return &scribev1.WriteResponse{Results: []*scribev1.FrameResult{{Lsn: sum(w.GetFrames())}}}, nil
		}
		return nil, nil
	}}
	f.services().Register(mux)
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	e := &endpoint{transport: rpc.OverClient(srv.Client()), url: srv.URL + "/"}
	for _, kind := range kinds {
		if err := kind.call(t.Context(), e); err != nil {
			t.Errorf("%s: %v", kind.name, err)
		}
	}
	frames := bytes.Repeat([]byte("0123456789"), 500_000)
	res, err := e.write().Write(t.Context(), &scribev1.WriteRequest{Frames: frames})
	if err != nil || res.GetResults()[0].GetLsn() != sum(frames) {
		t.Errorf("%v, %v", res, err)
	}
	e.transport.Close() // leaves the caller's connections alone
	if err := kinds[0].call(t.Context(), e); err != nil {
		t.Error(err)
	}
}
