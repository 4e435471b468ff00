package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// tenant is one of two whose messages are in one blob.
type tenant struct {
	category, group, secret, token string
	entries                        []*scribev1.StreamEntry
}

// twoTenants writes messages of two tenants that end in one block of one blob.
func twoTenants(t *testing.T, c *closedCell) (red, blue *tenant) {
	t.Helper()
	red = &tenant{category: "red-ledger", group: "red-readers", secret: "the-secret-of-red"}
	blue = &tenant{category: "blue-ledger", group: "blue-readers", secret: "the-secret-of-blue"}
	p, err := producer.New(c.URL, producer.WithToken(c.admin), producer.WithLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	control := rpc.NewControlClient(c.transport(c.admin), c.URL)
	for _, of := range []*tenant{red, blue} {
		if _, err := control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: of.category}}); err != nil {
			t.Fatal(err)
		}
		of.token = c.issue("--can", fmt.Sprintf("write,read,query,group,manage:%s", of.category), "--can", "all:"+of.category+"-own")
	}
	// Until both are in one flush, and so in one block.
	for range 50 {
		var results []*producer.Result
		for _, of := range []*tenant{red, blue} {
			results = append(results, p.WriteAsync(of.category, &producer.Message{Payload: []byte(strings.Repeat(of.secret+" ", 3))}))
		}
		for _, r := range results {
			if err := r.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, of := range []*tenant{red, blue} {
			entries, err := readEntries(t, c, of.token, of.category)
			if err != nil || len(entries) == 0 {
				t.Fatalf("%s: %d entries, %v", of.category, len(entries), err)
			}
			of.entries = entries[len(entries)-1:]
		}
		a, b := decodeEntry(t, red.entries[0]), decodeEntry(t, blue.entries[0])
		if a.Blob == b.Blob && a.BlockOffset == b.BlockOffset {
			return red, blue
		}
	}
	t.Fatal("the messages were never in one block")
	return red, blue
}

func decodeEntry(t *testing.T, e *scribev1.StreamEntry) pointer.Pointer {
	t.Helper()
	p, err := pointer.Decode(e.GetPointer())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var errEnough = errors.New("enough")

// readEntries reads the pointers of a category from its beginning.
func readEntries(t *testing.T, c *closedCell, token, category string) (entries []*scribev1.StreamEntry, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	sent := false
	err = rpc.NewReadStreamClient(c.transport(token), c.URL).Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
		if sent {
			<-ctx.Done()
			return nil, io.EOF
		}
		sent = true
		return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{
			Category: category, StartAt: scribev1.StartAt_START_AT_EARLIEST, Credits: &scribev1.StreamCredits{Pointers: 1000, Bytes: 1 << 30},
		}}}, nil
	}, func(res *scribev1.StreamResponse) error {
		entries = append(entries, res.GetEntries().GetEntries()...)
		if len(entries) > 0 {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return entries, err
}

// TestTenants: two tenants share a block of a blob. With any combination of calls, tickets and pointers, one gets neither a byte nor a
// name of the other.
func TestTenants(t *testing.T) {
	c := startClosed(t, "--flush-floor", "500ms", "--auto-create=false")
	red, blue := twoTenants(t, c)
	for _, of := range []*tenant{red, blue} {
		_, err := rpc.NewGroupClient(c.transport(of.token), c.URL).JoinGroup(t.Context(), &scribev1.JoinGroupRequest{Group: of.group, Category: of.category, Member: "m-" + of.group})
		if err != nil {
			t.Fatal(err)
		}
	}
	// One of them begins the block, the other ends it.
	for _, a := range []*attack{{t: t, c: c, of: red, at: blue}, {t: t, c: c, of: blue, at: red}} {
		a.checkOwn()
		a.fetchCombinations()
		a.openStreams()
		a.callControl()
		a.useGroups()
		a.query()
		a.write()
		if a.tried < 500 {
			t.Errorf("%s made only %d attempts", a.of.category, a.tried)
		}
	}
}

// attack is one tenant's attempts at another's.
type attack struct {
	t  *testing.T
	c  *closedCell
	of *tenant
	at *tenant
	// tried counts what was tried.
	tried int
}

// sees fails if something that the attacker was given has a byte or a name of the other. asked says what the attacker has said itself:
// an answer may repeat that.
func (a *attack) sees(what string, given []byte, err error, asked ...string) {
	a.t.Helper()
	a.tried++
	text := string(given)
	if err != nil {
		text += err.Error()
	}
	for _, secret := range []string{a.at.secret, a.at.category, a.at.group} {
		if strings.Contains(text, secret) && !slices.Contains(asked, secret) {
			a.t.Errorf("%s: it tells %q: %.300q", what, secret, text)
		}
	}
}

func encoded(m proto.Message) []byte {
	b, _ := protojson.Marshal(m)
	raw, _ := proto.Marshal(m)
	return append(b, raw...)
}

func (a *attack) readProxy() rpc.ReadProxyService {
	return rpc.NewReadProxyClient(a.c.transport(a.of.token), a.c.URL)
}

// checkOwn: what is the attacker's own it gets; else the attempts would prove nothing.
func (a *attack) checkOwn() {
	e := a.of.entries[0]
	res, err := a.readProxy().Fetch(a.t.Context(), &scribev1.FetchRequest{Category: a.of.category, Pointers: [][]byte{e.GetPointer()}, Tickets: [][]byte{e.GetTicket()}})
	if err != nil || len(res.GetPayloads()) != 1 || !bytes.Contains(res.GetPayloads()[0].GetData(), []byte(a.of.secret)) {
		a.t.Fatalf("its own payload: %v, %v", res, err)
	}
	a.sees("its own payload", encoded(res), err)
}

// pointers are what can be made of the tenants' pointers.
func (a *attack) pointers() map[string][]byte {
	mine, theirs := decodeEntry(a.t, a.of.entries[0]), decodeEntry(a.t, a.at.entries[0])
	made := map[string][]byte{"mine": a.of.entries[0].GetPointer(), "theirs": a.at.entries[0].GetPointer(), "damaged": []byte("x"), "none": nil}
	with := func(name string, p pointer.Pointer, change func(*pointer.Pointer)) {
		change(&p)
		made[name] = pointer.Append(nil, &p)
	}
	with("the whole block", mine, func(p *pointer.Pointer) { p.Offset, p.Length = 0, p.BlockRawLen })
	with("mine at their place", mine, func(p *pointer.Pointer) { p.Offset, p.Length = theirs.Offset, theirs.Length })
	with("mine and more", mine, func(p *pointer.Pointer) { p.Length = p.BlockRawLen - p.Offset })
	with("mine from the beginning", mine, func(p *pointer.Pointer) { p.Length, p.Offset = p.Offset+p.Length, 0 })
	with("a block of one", mine, func(p *pointer.Pointer) { p.Offset, p.Length, p.BlockRawLen = 0, theirs.Length, theirs.Length })
	with("uncompressed", mine, func(p *pointer.Pointer) {
		p.Codec, p.BlockRawLen, p.Offset, p.Length = pointer.CodecNone, p.BlockLen, 0, p.BlockLen
	})
	with("in another region", theirs, func(p *pointer.Pointer) { p.Region = "elsewhere" })
	with("the blob's header", mine, func(p *pointer.Pointer) {
		p.Codec, p.BlockOffset, p.BlockLen, p.BlockRawLen, p.Offset, p.Length = pointer.CodecNone, 0, 128, 128, 0, 128
	})
	maps.DeleteFunc(made, func(name string, p []byte) bool { return name != "mine" && bytes.Equal(p, made["mine"]) })
	return made
}

// nearName is like the name of the other's category, and not it.
func (a *attack) nearName() string { return a.at.category[:len(a.at.category)-1] }

// fetchCombinations fetches every pointer with every ticket as every category in every encoding, as a peer and not.
func (a *attack) fetchCombinations() {
	tickets := map[string][][]byte{
		"none": nil, "empty": {{}}, "mine": {a.of.entries[0].GetTicket()}, "theirs": {a.at.entries[0].GetTicket()}, "zeros": {make([]byte, len(a.of.entries[0].GetTicket()))},
		"two": {a.of.entries[0].GetTicket(), a.of.entries[0].GetTicket()},
	}
	proxy := a.readProxy()
	for pname, p := range a.pointers() {
		for tname, ticket := range tickets {
			for _, category := range []string{a.of.category, a.at.category} {
				for encoding := range scribev1.PayloadEncoding(5) {
					for _, peer := range []bool{false, true} {
						res, err := proxy.Fetch(a.t.Context(), &scribev1.FetchRequest{Category: category, Pointers: [][]byte{p}, Tickets: ticket, Encoding: encoding, Peer: peer})
						a.sees(fmt.Sprintf("fetch %s with the ticket %s as %s, encoding %d, peer %v", pname, tname, category, encoding, peer), encoded(res), err, category)
						if err == nil && pname != "mine" {
							a.t.Errorf("fetch %s with the ticket %s as %s is served: %v", pname, tname, category, res)
						}
					}
				}
			}
		}
	}
	// A fetch of several: one that is allowed does not carry others.
	both := [][]byte{a.of.entries[0].GetPointer(), a.at.entries[0].GetPointer()}
	res, err := proxy.Fetch(a.t.Context(), &scribev1.FetchRequest{Category: a.of.category, Pointers: both, Tickets: [][]byte{a.of.entries[0].GetTicket(), a.of.entries[0].GetTicket()}})
	a.sees("fetch of both", encoded(res), err)
}

func (a *attack) openStreams() {
	for _, token := range []string{a.of.token, "", "scribe_wrong"} {
		entries, err := readEntries(a.t, a.c, token, a.at.category)
		if err == nil || len(entries) > 0 {
			a.t.Errorf("a stream of the other's: %d entries, %v", len(entries), err)
		}
		a.sees("a stream", nil, err, a.at.category)
	}
	_, err := rpc.NewReadStreamClient(a.c.transport(a.of.token), a.c.URL).Bounds(a.t.Context(), &scribev1.BoundsRequest{Category: a.of.category, Shards: []uint64{a.at.entries[0].GetShard()}})
	a.sees("bounds of its shard", nil, err)
}

// callControl lists, describes and changes categories, and asks for what is for others.
func (a *attack) callControl() {
	control := rpc.NewControlClient(a.c.transport(a.of.token), a.c.URL)
	ctx := a.t.Context()
	list, err := control.ListCategories(ctx, &scribev1.ListCategoriesRequest{})
	if err != nil || len(list.GetCategories()) != 1 {
		a.t.Errorf("its categories: %v, %v", list, err)
	}
	a.sees("a list", encoded(list), err)
	for _, req := range []*scribev1.ListCategoriesRequest{{Prefix: a.at.category[:4]}, {After: "a"}, {Limit: 1}, {Names: []string{a.at.category}}} {
		list, err := control.ListCategories(ctx, req)
		a.sees("a list", encoded(list), err)
		if len(list.GetCategories()) > 1 || list.GetMore() {
			a.t.Errorf("%v: %v", req, list)
		}
	}
	describe := func(name string) error {
		res, err := control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: name})
		a.sees("describe "+name, encoded(res), err, name)
		return err
	}
	// Names near the other's, hidden and missing ones are answered in the same words.
	there, missing := describe(a.at.category), describe(a.nearName())
	if x, y := strings.ReplaceAll(there.Error(), a.at.category, "X"), strings.ReplaceAll(missing.Error(), a.nearName(), "X"); x != y {
		a.t.Errorf("%q and %q tell what exists", x, y)
	}
	// A name of its own that does not exist gets no suggestion.
	_, err = control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: a.of.category + "-own"})
	a.sees("describe a missing name", nil, err)
	status, err := control.GetStatus(ctx, &scribev1.GetStatusRequest{})
	a.sees("status", encoded(status), err)
	if status.GetCategories() != 0 {
		a.t.Errorf("status tells of %d categories", status.GetCategories())
	}
	_, err = control.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: a.at.category}, IfNotExists: true})
	a.sees("create", nil, err, a.at.category)
	_, err = control.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: a.of.category, Owner: new("blue")})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_DENIED {
		a.t.Errorf("a change of the owner: %v", err)
	}
	_, err = control.DeleteCategory(ctx, &scribev1.DeleteCategoryRequest{Name: a.at.category})
	a.sees("delete", nil, err, a.at.category)
	err = control.WatchCategories(ctx, &scribev1.WatchCategoriesRequest{}, func(m *scribev1.WatchCategoriesResponse) error {
		a.sees("a watch", encoded(m), nil)
		return errEnough
	})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_DENIED {
		a.t.Errorf("a watch: %v", err)
	}
	access := rpc.NewAccessClient(a.c.transport(a.of.token), a.c.URL)
	err = access.WatchAccess(ctx, &scribev1.WatchAccessRequest{}, func(*scribev1.WatchAccessResponse) error { return errEnough })
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_DENIED {
		a.t.Errorf("a watch of keys: %v", err)
	}
	tokens, err := access.ListTokens(ctx, &scribev1.ListTokensRequest{})
	a.sees("tokens", encoded(tokens), err)
	views, err := rpc.NewViewClient(a.c.transport(a.of.token), a.c.URL).Views(ctx, &scribev1.ViewsRequest{})
	a.sees("views", encoded(views), err)
	shards, err := rpc.NewMetalogClient(a.c.transport(a.of.token), a.c.URL).Read(ctx, &scribev1.ReadRequest{Shard: a.at.entries[0].GetShard(), From: 1})
	a.sees("the log", encoded(shards), err)
	if err == nil {
		a.t.Error("the log is read")
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/readyz", "/x"} {
		_, text := a.c.get(http.MethodGet, path, a.of.token, "")
		a.sees(path, []byte(text), nil)
	}
}

func (a *attack) useGroups() {
	ctx := a.t.Context()
	groups := rpc.NewGroupClient(a.c.transport(a.of.token), a.c.URL)
	list, err := groups.ListGroups(ctx, &scribev1.ListGroupsRequest{})
	if err != nil || len(list.GetGroups()) != 1 || list.GetMore() {
		a.t.Errorf("its groups: %v, %v", list, err)
	}
	a.sees("groups", encoded(list), err)
	for _, category := range []string{a.of.category, a.at.category} {
		_, err = groups.JoinGroup(ctx, &scribev1.JoinGroupRequest{Group: a.at.group, Category: category, Member: "x"})
		a.sees("join", nil, err, a.at.group, category)
		if err == nil {
			a.t.Error("it joins the other's group")
		}
	}
	describe := func(group string) string {
		res, err := groups.DescribeGroup(ctx, &scribev1.DescribeGroupRequest{Group: group})
		a.sees("describe a group", encoded(res), err, group)
		return strings.ReplaceAll(fmt.Sprint(err), group, "X")
	}
	if there, missing := describe(a.at.group), describe("no-readers"); there != missing {
		a.t.Errorf("%q and %q tell which groups exist", there, missing)
	}
	_, err = groups.ResetGroup(ctx, &scribev1.ResetGroupRequest{Group: a.at.group, StartAt: scribev1.StartAt_START_AT_EARLIEST, Force: true})
	a.sees("reset a group", nil, err, a.at.group)
	_, err = groups.DeleteGroup(ctx, &scribev1.DeleteGroupRequest{Group: a.at.group, Force: true})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_GROUP {
		a.t.Errorf("it deletes the other's group: %v", err)
	}
}

func (a *attack) query() {
	status, text := a.c.get(http.MethodGet, "/v1/query?"+url.Values{"sql": {`SELECT payload FROM "` + a.of.category + `"`}}.Encode(), a.of.token, "")
	a.sees("its own query", []byte(text), nil)
	if status != http.StatusOK || !strings.Contains(text, a.of.secret) {
		a.t.Errorf("its own query: %d, %s", status, text)
	}
	for _, name := range []string{a.at.category, a.nearName(), a.of.category + "-own"} {
		status, text := a.c.get(http.MethodGet, "/v1/query?"+url.Values{"sql": {`SELECT * FROM "` + name + `"`}}.Encode(), a.of.token, "")
		a.sees("a query of "+name, []byte(text), nil, name)
		if status == http.StatusOK {
			a.t.Errorf("a query of %s: %s", name, text)
		}
	}
}

func (a *attack) write() {
	const path = "/scribe.v1.WriteService/Publish"
	for name, want := range map[string]int{a.of.category: 200, a.at.category: 403, a.nearName(): 403, a.of.category + "-own": 404} {
		status, text := a.c.get(http.MethodPost, path, a.of.token, fmt.Sprintf(`{"category": %q, "messages": [{"text": "x"}]}`, name))
		a.sees("a write to "+name, []byte(text), nil, name)
		if status != want {
			a.t.Errorf("a write to %s: %d, want %d: %s", name, status, want, text)
		}
	}
}
