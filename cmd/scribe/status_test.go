package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
