package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// answeringNode is a node that says what a test tells it to.
type answeringNode struct {
	rpc.NodeService
	describe func() (*scribev1.NodeDescription, error)
	list     func() ([]*scribev1.Node, error)
}

func (n answeringNode) DescribeNode(context.Context, *scribev1.DescribeNodeRequest) (*scribev1.DescribeNodeResponse, error) {
	d, err := n.describe()
	return &scribev1.DescribeNodeResponse{Node: d}, err
}

func (n answeringNode) ListNodes(context.Context, *scribev1.ListNodesRequest) (*scribev1.ListNodesResponse, error) {
	nodes, err := n.list()
	return &scribev1.ListNodesResponse{Nodes: nodes}, err
}

// beginnerOf is n1 of three nodes, with an empty folder; others are by name.
func beginnerOf(t *testing.T, fsys vfs.FS, others map[string]rpc.NodeService) *nodeBeginner {
	cell := cellOf(t)
	if err := fsys.MkdirAll("DATA", 0o750); err != nil {
		t.Fatal(err)
	}
	return &nodeBeginner{
		facts: nodeFacts{place: cell[0], cluster: cell, data: "DATA"}, cell: "c", fsys: fsys, log: slog.New(slog.DiscardHandler),
		connect: func(p nodePlace) rpc.NodeService { return others[p.name] }, report: func(string) {},
	}
}

// TestBeginTogether: a node waits until the last of the others has answered, and then writes down that it begins, before anything follows.
func TestBeginTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell, fsys := cellOf(t), vfs.NewMem()
		asked := 0
		up := answeringNode{describe: func() (*scribev1.NodeDescription, error) { return answering(cell[1], empty, cell).node, nil }}
		late := answeringNode{describe: func() (*scribev1.NodeDescription, error) {
			if asked++; asked < 4 {
				return nil, connect.NewError(connect.CodeUnavailable, errors.New("nobody listens"))
			}
			return answering(cell[2], begun, cell).node, nil
		}}
		var waits []string
		b := beginnerOf(t, fsys, map[string]rpc.NodeService{"n2": up, "n3": late})
		b.report = func(w string) { waits = append(waits, w) }
		start, err := b.awaitBegin(t.Context())
		if err != nil || start.join || !slices.Equal(start.members, cell) {
			t.Fatalf("%+v, %v", start, err)
		}
		if len(waits) != 4 || !strings.Contains(waits[0], "n3=c:100 (nobody listens)") || waits[3] != "" {
			t.Errorf("it waited for %q", waits)
		}
		f, err := readNodeFile(fsys, "DATA")
		if err != nil || f.state() != begun || f.Name != "n1" || f.Token != clusterToken("c", cell) || f.Joined {
			t.Errorf("the file holds %+v, %v", f, err)
		}
	})
}

// TestBeginReplaced: a node whose place waits for it joins once the cell has a majority, and is of a cell that was ready from then on.
func TestBeginReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell, fsys := cellOf(t), vfs.NewMem()
		lists := 0
		other := answeringNode{
			describe: func() (*scribev1.NodeDescription, error) { return answering(cell[1], ready, cell).node, nil },
			list: func() ([]*scribev1.Node, error) {
				if lists++; lists == 1 {
					return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the cell has no majority")
				}
				return []*scribev1.Node{
					{Place: cell[1].message(), Started: true},
					{Place: &scribev1.NodeAddress{Address: "a:100"}},
					{Place: &scribev1.NodeAddress{Address: "d:100"}, Member: 0xab},
				}, nil
			},
		}
		away := answeringNode{describe: func() (*scribev1.NodeDescription, error) { return nil, errors.New("away") }}
		start, err := beginnerOf(t, fsys, map[string]rpc.NodeService{"n2": other, "n3": away}).awaitBegin(t.Context())
		want := []nodePlace{cell[1], cell[0], {"member-ab", "d:100"}}
		if err != nil || !start.join || !slices.Equal(start.members, want) || lists != 2 {
			t.Fatalf("%+v, %v, asked %d times: want members %v", start, err, lists, want)
		}
		if f, err := readNodeFile(fsys, "DATA"); err != nil || f.state() != ready || !f.Joined {
			t.Errorf("the file holds %+v, %v", f, err)
		}
	})
}

// TestBeginLost: a node whose data is gone writes nothing, and names the command that makes it a new one.
func TestBeginLost(t *testing.T) {
	cell, fsys := cellOf(t), vfs.NewMem()
	other := answeringNode{
		describe: func() (*scribev1.NodeDescription, error) { return answering(cell[1], ready, cell).node, nil },
		list: func() ([]*scribev1.Node, error) {
			return []*scribev1.Node{{Place: cell[0].message(), Started: true}}, nil
		},
	}
	_, err := beginnerOf(t, fsys, map[string]rpc.NodeService{"n2": other, "n3": other}).awaitBegin(t.Context())
	if err == nil || !strings.Contains(err.Error(), "answers node n2") {
		t.Fatalf("two nodes of one name: %v", err)
	}
	b := beginnerOf(t, fsys, map[string]rpc.NodeService{"n2": other})
	b.facts.cluster = cell[:2]
	if _, err = b.awaitBegin(t.Context()); err == nil || !strings.Contains(err.Error(), "scribe node replace n1 --server http://b:100") {
		t.Fatalf("got %v", err)
	}
	if f, err := readNodeFile(fsys, "DATA"); f != nil || err != nil {
		t.Errorf("the file holds %+v, %v", f, err)
	}
}

// TestBeginLostByAll: a node that finds out that no node has anything of the cell goes on answering for a while before it ends, so that the others find out, too.
func TestBeginLostByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cell, fsys := cellOf(t), vfs.NewMem()
		lost := func(i int) answeringNode {
			return answeringNode{describe: func() (*scribev1.NodeDescription, error) {
				d := answering(cell[i], ready, cell).node
				d.Lost = true
				return d, nil
			}}
		}
		b := beginnerOf(t, fsys, map[string]rpc.NodeService{"n2": lost(1), "n3": lost(2)})
		b.facts.file = &nodeFile{Name: "n1", Address: "a:100", Cell: "c", Token: "t", Ready: true}
		began := time.Now()
		_, err := b.awaitBegin(t.Context())
		if !errors.Is(err, errMetadataLost) || !strings.Contains(err.Error(), "scribe recover") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != lostLinger {
			t.Errorf("it ended after %v, want %v", took, lostLinger)
		}
	})
}

// TestBeginOtherCell: a node does not start under another name of its cell, where it would find nothing of what it has.
func TestBeginOtherCell(t *testing.T) {
	b := beginnerOf(t, vfs.NewMem(), nil)
	b.facts.file, b.facts.hasMember = &nodeFile{Name: "n1", Address: "a:100", Cell: "former", Token: "t", Ready: true}, true
	if _, err := b.awaitBegin(t.Context()); err == nil || !strings.Contains(err.Error(), "of cell former, and --cell says c:") {
		t.Errorf("got %v", err)
	}
	b.cell = "former"
	if _, err := b.awaitBegin(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBeginEnds: whoever waits for others ends with the process.
func TestBeginEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		away := answeringNode{describe: func() (*scribev1.NodeDescription, error) { return nil, errors.New("away") }}
		b := beginnerOf(t, vfs.NewMem(), map[string]rpc.NodeService{"n2": away, "n3": away})
		stopped := errors.New("stopped")
		b.report = func(w string) {
			if w != "" {
				cancel(stopped)
			}
		}
		if _, err := b.awaitBegin(ctx); !errors.Is(err, stopped) || !strings.Contains(err.Error(), "n2=b:100 (away)") {
			t.Errorf("got %v", err)
		}
	})
}

// TestNodeFile: what is written is read, what is damaged or of another version is refused with its path.
func TestNodeFile(t *testing.T) {
	fsys := vfs.NewCrashableMem()
	if err := fsys.MkdirAll("DATA", 0o750); err != nil {
		t.Fatal(err)
	}
	if f, err := readNodeFile(fsys, "DATA"); f != nil || err != nil {
		t.Fatalf("%+v, %v", f, err)
	}
	want := nodeFile{Name: "n1", Address: "a:1", Cell: "c", Token: "t", Cluster: []string{"n1=a:1"}, Ready: true}
	if err := writeNodeFile(fsys, "DATA", want); err != nil {
		t.Fatal(err)
	}
	got, err := readNodeFile(fsys, "DATA")
	if err != nil || got.Name != want.Name || got.Address != want.Address || got.Token != want.Token || !got.Ready || !slices.Equal(got.Cluster, want.Cluster) {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
	want.Adopts, want.Moved, want.Detached = "n1", &movedMetadata{Entry: 7, Chain: strings.Repeat("0a", 16), Time: 9}, true
	if err := writeNodeFile(fsys, "DATA", want); err != nil {
		t.Fatal(err)
	}
	got, err = readNodeFile(fsys, "DATA")
	if err != nil || got.Version != movedFileVersion || got.Adopts != "n1" || *got.Moved != *want.Moved || !got.Detached {
		t.Fatalf("%+v, %v: want %+v", got, err, want)
	}
	if at, err := got.Moved.adoption(); err != nil || at.Seq != 7 || at.Time != 9 || at.Chain.String() != want.Moved.Chain {
		t.Errorf("the journal begins at %+v, %v", at, err)
	}
	inEtcd := nodeFile{Name: "a host-1", Cell: "c", Token: "etcd-1", Etcd: []string{"http://a:2379"}, Ready: true}
	if err := writeNodeFile(fsys, "DATA", inEtcd); err != nil {
		t.Fatal(err)
	}
	got, err = readNodeFile(fsys, "DATA")
	if err != nil || got.Version != etcdFileVersion || got.Name != inEtcd.Name || !slices.Equal(got.Etcd, inEtcd.Etcd) || !got.isEtcd() {
		t.Fatalf("%+v, %v: want %+v", got, err, inEtcd)
	}
	for text, says := range map[string]string{
		`{"version":2,"name":"n1","address":"a:1","token":"t","moved":{"entry":1,"chain":"0a"}}`: "where the journal begins",
		"": "damaged", "{": "damaged", `{"version":4,"name":"n1"}`: "version is 4", `{"version":1,"name":"n1"}`: "names no node", `{"version":3,"name":"n1","token":"t"}`: "names an etcd",
		`{"version":2,"name":"n1","address":"a:1","token":"t","etcd":["http://a:1"]}`: "names an etcd", `{"version":3,"token":"t","etcd":["http://a:1"]}`: "names no node",
	} {
		if _, err := decodeNodeFile([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func FuzzNodeFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"n1","address":"a:1","token":"t","cluster":["n1=a:1"],"ready":true}`))
	f.Add([]byte(`{"version":2,"name":"n1","address":"a:1","token":"t","adopts":"n1","moved":{"entry":1,"chain":"00112233445566778899aabbccddeeff","time":3}}`))
	f.Add([]byte(`{"version":3,"name":"a","token":"etcd-1","cell":"c","etcd":["http://a:2379"],"ready":true}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := decodeNodeFile(text); err == nil && (got.Name == "" || got.Token == "" || got.Version < nodeFileVersion || got.Version > etcdFileVersion || got.isEtcd() != (got.Version == etcdFileVersion)) {
			t.Errorf("%q is %+v", text, got)
		}
	})
}
