package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"scribe/cmd/scribe/survey"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// renamedRoles is a control plane of a cell whose members have the roles that the protocol calls otherwise than users.
type renamedRoles struct{ rpc.ControlService }

func (renamedRoles) GetStatus(context.Context, *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	roles := []scribev1.Role{scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_COLLECTOR, scribev1.Role_ROLE_GATEWAY}
	return &scribev1.GetStatusResponse{Roles: roles, Members: []*scribev1.Member{{
		Id: "m", Roles: roles, Load: 250, Loads: []*scribev1.RoleLoad{{Role: scribev1.Role_ROLE_READPROXY, Load: 20}, {Role: scribev1.Role_ROLE_GATEWAY, Load: 250}},
	}}}, nil
}

// TestStatusRoles: roles have the names that --roles takes, also where their loads are shown.
func TestStatusRoles(t *testing.T) {
	mux := http.NewServeMux()
	(&rpc.Services{Control: renamedRoles{}}).Register(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, output := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"roles       readproxy,retention,sqlserver\n", "m       readproxy,retention,sqlserver  ", "25.0% (sqlserver)"}},
		{[]string{"--json"}, []string{`"roles": [
    "readproxy",
    "retention",
    "sqlserver"
  ]`, `"load": 0.25,`, `"readproxy": 0.02,`}},
	} {
		cmd := newRoot()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"status", "--server", server.URL}, output.args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, want := range output.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("want %q in\n%s", want, out.String())
			}
		}
	}
}

// TestStatusReplicas: a cell whose processes share their metadata, and are not nodes, shows the replicas that say how they are, and the members of etcd
// as the replica of the newest term knows them.
func TestStatusReplicas(t *testing.T) {
	replica := func(r *scribev1.ReplicaStatus, etcd ...*scribev1.EtcdMember) string {
		return serveProcess(t, rpc.Services{Process: &countingProcess{health: &scribev1.GetHealthResponse{Now: time.Now().UnixMicro(), Replica: r, Etcd: etcd}}})
	}
	member := func(id string, role scribev1.Role, url string) *scribev1.Member {
		return &scribev1.Member{Id: id, Roles: []scribev1.Role{role}, Url: url}
	}
	deposed := &scribev1.EtcdMember{Url: "https://old:2379", Status: &scribev1.EtcdStatus{Member: 9, Leader: 9, Term: 1}}
	st := &scribev1.GetStatusResponse{Roles: []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE}, Members: []*scribev1.Member{
		member("a", scribev1.Role_ROLE_METALOG, replica(&scribev1.ReplicaStatus{Leads: true, Leader: "http://a", Term: 6, Applied: 80, Newest: 80}, deposed)),
		member("b", scribev1.Role_ROLE_METALOG, replica(&scribev1.ReplicaStatus{Leads: true, Leader: "http://b", Term: 7, Applied: 90, Newest: 90},
			&scribev1.EtcdMember{Url: "https://e1:2379", Status: &scribev1.EtcdStatus{Member: 0xab, Leader: 0xab, Term: 3, Bytes: 5 << 20}},
			&scribev1.EtcdMember{Url: "https://e2:2379", Error: "connection refused"})),
		member("c", scribev1.Role_ROLE_METALOG, replica(&scribev1.ReplicaStatus{Leader: "http://b", Term: 7, Applied: 85, Newest: 90, Error: "its disk failed"})),
		member("d", scribev1.Role_ROLE_BATCHER, replica(nil)),
	}}
	server := serveProcess(t, rpc.Services{Control: &listedMembers{status: st}})
	text, err := runCommand(t, "status", "--server", server)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(text), " ")
	for _, want := range []string{
		"REPLICA URL METALOG TERM APPLIED LAG", "b " + st.GetMembers()[1].GetUrl() + " leads 7 90 0", "c " + st.GetMembers()[2].GetUrl() + " follows 7 85 5", "c: its disk failed",
		"ETCD MEMBER STATE TERM SIZE", "https://e1:2379 ab leads 3 5", "https://e2:2379 - away - -", "https://e2:2379: connection refused",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	text, err = runCommand(t, "status", "-o", "json", "--server", server)
	var shown struct {
		Replicas []survey.CellReplica
		Etcd     []survey.EtcdMember
		Nodes    []survey.Node
	}
	if jerr := json.Unmarshal([]byte(text), &shown); err != nil || jerr != nil {
		t.Fatal(err, jerr, text)
	}
	if len(shown.Replicas) != 3 || len(shown.Etcd) != 2 || len(shown.Nodes) != 0 {
		t.Fatalf("%+v", shown)
	}
	if r := shown.Replicas[2]; r.Process != "c" || r.Leads || r.Leader != "http://b" || r.Term != 7 || r.Lag != 5 {
		t.Errorf("%+v", r)
	}
	if e := shown.Etcd[0]; e.Member != "ab" || !e.Leads || e.Term != 3 || e.Size != 5<<20 || shown.Etcd[1].Error == "" {
		t.Errorf("%+v", shown.Etcd)
	}
}

// listedNodes is a node of a cell of some nodes.
type listedNodes struct {
	rpc.NodeService
	nodes []*scribev1.Node
	err   error
}

func (l *listedNodes) ListNodes(context.Context, *scribev1.ListNodesRequest) (*scribev1.ListNodesResponse, error) {
	return &scribev1.ListNodesResponse{Nodes: l.nodes}, l.err
}

// TestStatusNodes: the status of a cell of nodes has the nodes, also as JSON, and says why it has not.
func TestStatusNodes(t *testing.T) {
	nodes := &listedNodes{nodes: []*scribev1.Node{{
		Place: &scribev1.NodeAddress{Name: "n1", Address: "10.0.0.1:7420"}, Started: true,
		Self: &scribev1.NodeDescription{Metalog: &scribev1.ReplicaStatus{Leads: true, Term: 4}},
	}}}
	st := &scribev1.GetStatusResponse{Roles: []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE}, Members: []*scribev1.Member{wellMember()}}
	st.Members[0].Url = serveProcess(t, rpc.Services{Process: &countingProcess{}})
	server := serveProcess(t, rpc.Services{Control: &listedMembers{status: st}, Node: nodes})
	show := func() (shown struct {
		Nodes      []survey.Node
		NodesError string `json:"nodes_error"`
	},
	) {
		t.Helper()
		text, err := runCommand(t, "status", "-o", "json", "--server", server)
		if jerr := json.Unmarshal([]byte(text), &shown); err != nil || jerr != nil {
			t.Fatal(err, jerr, text)
		}
		return shown
	}
	if shown := show(); len(shown.Nodes) != 1 || shown.Nodes[0].Name != "n1" || shown.Nodes[0].Metalog.Term != 4 || shown.NodesError != "" {
		t.Errorf("%+v", shown)
	}
	if text, err := runCommand(t, "status", "--server", server); err != nil || !strings.Contains(text, "\nNODE ") || !strings.Contains(text, "n1 ") {
		t.Errorf("%v:\n%s", err, text)
	}
	nodes.err = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "no majority")
	if shown := show(); len(shown.Nodes) != 0 || !strings.Contains(shown.NodesError, "no majority") {
		t.Errorf("%+v", shown)
	}
	if _, err := runCommand(t, "status", "--server", server); err == nil || !strings.Contains(err.Error(), "no majority") {
		t.Error(err)
	}
}
