package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/survey"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func newNode() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "node",
		Short: "List, add, replace and remove the nodes of a cell, or make it one of one process",
		Long: `A cell of several nodes ("scribe up --node NAME --cluster ...") keeps its metadata on each of them, and works while more than half of them are up.
Nodes keep it in etcd, which each one runs in its process: at its port + 1 for clients, at its port + 2 for the other nodes.

A node that lost its data does not start by itself: it has voted, and what it has voted for counts on its memory. "scribe node replace"
makes it a new one. These commands ask any node that is up; but "scribe node detach", which takes the place of a node that was stopped.

The folder of a cell of one process becomes that of nodes with "scribe up --adopt", and that of a node one of one process with "scribe node detach". Both also work
for a cell whose metadata is in an etcd that others run ("scribe serve --etcd URLS").`,
		Example: `  scribe node list
  scribe node replace n3 --server http://10.0.0.1:7420    # then start n3 with an empty --data
  scribe node add n4=10.0.0.4:7420
  scribe node detach --node n1 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420 --data /var/lib/scribe --blob-path /mnt/shared/blobs`,
	}, newNodeList(), newNodeAdd(), newNodeReplace(), newNodeRemove(), newNodeExport(), newNodeDetach())
}

func nodeClient(server string) rpc.NodeService { return rpc.NewNodeClient(rpc.Default(), server) }

// nodeFailure returns the error of a call to a node. A process that is not one does not know the call.
func nodeFailure(server string, err error) error {
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return &codedError{code: exitNotFound, err: fmt.Errorf("%s is not a node: its cell has none, or it is another process of the cell; give the address of a node with --server", server)}
	}
	return err
}

func newNodeList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the nodes, who leads, and how far each is",
		Long: `List the nodes of the cell. ETCD is the state of the node's etcd member, METALOG that of its replica of the metadata logs (LAG in entries of the
journal), CONTROL whether its control plane keeps the membership. A node that does not answer has only what etcd knows of it.`,
		Example: `  scribe node list
  scribe node list --server http://10.0.0.2:7420 -o json`,
		Args: cobra.NoArgs,
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		res, err := callCell(cmd.Context(), *server, "list nodes", nodeClient(*server).ListNodes, &scribev1.ListNodesRequest{})
		if err != nil {
			return nodeFailure(*server, err)
		}
		if asJSON {
			return printLines(cmd.OutOrStdout(), survey.DescribeNodes(res.GetNodes())...)
		}
		return printNodes(cmd.OutOrStdout(), res.GetNodes())
	}
	return cmd
}

func newNodeAdd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME=HOST:PORT",
		Short: "Make room for another node",
		Long: `Make room for another node, which can be started then: with an empty --data and a --cluster that has it. To go from three nodes to five, add
one and start it, then the other: between the two steps the cell has four, of which three must be up.`,
		Example: `  scribe node add n4=10.0.0.4:7420
  scribe up --node n4 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420,n4=10.0.0.4:7420,n5=10.0.0.5:7420 --data /var/lib/scribe ...`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, address, err := parseNodeArgument(args[0], true)
		if err != nil {
			return err
		}
		req := &scribev1.AddNodeRequest{Node: &scribev1.NodeAddress{Name: name, Address: address}}
		res, err := callCell(cmd.Context(), *server, "add node "+name, nodeClient(*server).AddNode, req)
		if err != nil {
			return nodeFailure(*server, err)
		}
		return printNext(cmd.OutOrStdout(), name, "has a place", res.GetNodes())
	}
	return cmd
}

func newNodeReplace() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replace NAME[=HOST:PORT]",
		Short: "Put an empty node in the place of one whose data is lost",
		Long: `Put an empty node in the place of one whose data is lost, or whose machine is; with HOST:PORT at another address. Start it afterwards with an empty
--data. What the former node's folder holds can't come back. It is refused while the node runs with its data, and if the
majority of the others would not be up.`,
		Example: `  scribe node replace n3 --server http://10.0.0.1:7420
  scribe node replace n3=10.0.0.9:7420 --server http://10.0.0.1:7420`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, address, err := parseNodeArgument(args[0], false)
		if err != nil {
			return err
		}
		res, err := callCell(cmd.Context(), *server, "replace node "+name, nodeClient(*server).ReplaceNode, &scribev1.ReplaceNodeRequest{Name: name, Address: address})
		if err != nil {
			return nodeFailure(*server, err)
		}
		return printNext(cmd.OutOrStdout(), name, "is replaced by an empty node", res.GetNodes())
	}
	return cmd
}

func newNodeRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a node for good",
		Long: `Remove a node for good. What its folder holds can't come back. It is refused if the majority of the others would not be up. Stop the node
afterwards, and take it out of --cluster of the others at their next start.`,
		Example: `  scribe node remove n5
  scribe node remove n5 --server http://10.0.0.1:7420`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		res, err := callCell(cmd.Context(), *server, "remove node "+args[0], nodeClient(*server).RemoveNode, &scribev1.RemoveNodeRequest{Name: args[0]})
		if err != nil {
			return nodeFailure(*server, err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "node %s is removed; the nodes are %s\n", args[0], placesText(res.GetNodes()))
		return nil
	}
	return cmd
}

func newNodeExport() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "export --data DIR",
		Short: "Store a copy of a running cell's metadata logs, so that its move to nodes is short",
		Long: `Store the tables of the metadata logs of a cell of one process, which may run, with its payloads. "scribe up --adopt" stores only what is missing then, so that
writers wait for seconds, whatever the size of the logs. It changes nothing in DIR. Run it again for what was written since; the last time shortly before the move.
What is stored and not used within a day is removed by the nodes later.

--data, --blobs or --config give the location of the logs and of the blobs, as for "scribe up".`,
		Example: `  scribe node export --data /var/lib/scribe --blob-path /mnt/shared/blobs
  scribe node export --data /var/lib/scribe --blobs s3 --s3-endpoint https://s3.example.org --s3-bucket scribe`,
		Args: cobra.NoArgs,
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.Flags().StringVar(&f.config, "config", "", "YAML configuration file of the cell; flags and environment variables override it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := f.configure(cmd)
		if err != nil {
			return err
		}
		if err := checkBlobs(c); err != nil {
			return err
		}
		tables, bytes, err := app.ExportTables(cmd.Context(), c, app.Host{})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d tables with %v are stored\n", tables, units.Bytes(bytes))
		return nil
	}
	return cmd
}

func newNodeDetach() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "detach (--node NAME --cluster NAME=HOST:PORT,... | --etcd URL,...) --data DIR",
		Short: "Make a node's folder that of a cell of one process, and end the cell of nodes",
		Long: `Make the data folder of a node that of a cell of one process, with all that the nodes have: metadata logs, categories, groups, checkpoints and sequences go
on where they are. Stop that node before, and leave the others running; give the flags with which it ran. Whoever leads the metadata logs ends them in order,
the folder gets what is missing, and the other nodes end and do not start again. Writers wait until "scribe up" runs with the folder.

With --etcd the folder is that of a process whose metadata is in an etcd that others run. Stop all processes of the cell with --etcd before. What the cell had in
etcd remains there, and is not used any more.

After an interruption run the command again: it goes on. The other nodes keep their etcd up until it has finished.

Exit codes: 0 the folder is that of a cell of one process, 1 something is in the way (it is named), 2 wrong usage.`,
		Example: `  kill -TERM PID_OF_N1
  scribe node detach --node n1 --cluster n1=10.0.0.1:7420,n2=10.0.0.2:7420,n3=10.0.0.3:7420 --data /var/lib/scribe --blob-path /mnt/shared/blobs
  scribe up --data /var/lib/scribe --blob-path /mnt/shared/blobs --listen 10.0.0.1:7420
  scribe node detach --etcd http://10.0.0.5:2379 --cell eu --data /var/lib/scribe --blob-path /mnt/shared/blobs`,
		Args: cobra.NoArgs,
	}
	f.addFlags(cmd, "up", app.DefaultConfig(), "detach")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := f.configureServer(cmd)
		if err != nil {
			return err
		}
		if c.Node == "" && len(c.Etcd.URLs) == 0 {
			return usageError(errors.New("missing --node and --cluster, or --etcd: want those with which the process ran"))
		}
		c.Adopt = false
		if err := app.DetachNode(cmd.Context(), c, app.Options{Logger: newLogger(c.Log, cmd.ErrOrStderr()), Version: programVersion()}); err != nil {
			return err
		}
		former, flags := "the cell of nodes", "--node and --cluster"
		if c.Node == "" {
			former, flags = "the cell in etcd", "--etcd"
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s has ended, and %s has its metadata; go on with: scribe up --data %s ... (without %s, with the same blobs)\n", former, c.Data, c.Data, flags)
		return nil
	}
	return cmd
}

// parseNodeArgument reads NAME=HOST:PORT, or NAME alone where no address is needed.
func parseNodeArgument(text string, needsAddress bool) (name, address string, err error) {
	name, address, found := strings.Cut(text, "=")
	if name == "" || found && address == "" || needsAddress && !found {
		return "", "", usageError(fmt.Errorf("invalid node %q: want NAME=HOST:PORT", text))
	}
	return name, address, nil
}

// printNext says what was done, and what starts the node.
func printNext(out io.Writer, name, done string, nodes []*scribev1.NodeAddress) error {
	_, err := fmt.Fprintf(out, "node %s %s; start it with an empty --data: scribe up --node %s --cluster %s ...\n", name, done, name, placesText(nodes))
	return err
}

// placesText writes nodes as --cluster does.
func placesText(nodes []*scribev1.NodeAddress) string {
	texts := make([]string, len(nodes))
	for i, n := range nodes {
		texts[i] = n.GetName() + "=" + n.GetAddress()
	}
	return strings.Join(texts, ",")
}

func printNodes(out io.Writer, nodes []*scribev1.Node) error {
	w := newTable(out, "NODE\tADDRESS\tSTATE\tETCD\tMEMBER\tMETALOG\tTERM\tAPPLIED\tLAG\tCONTROL\tVERSION")
	var remarks []string
	for _, n := range nodes {
		d := survey.DescribeNode(n)
		name := cmp.Or(d.Name, "-")
		applied, lag := "-", "-"
		if m := n.GetSelf().GetMetalog(); m != nil {
			applied, lag = strconv.FormatUint(m.GetApplied(), 10), strconv.FormatUint(d.Metalog.Lag, 10)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%x\t%s\t%s\t%s\t%s\t%s\t%s\n", name, d.Address, d.State, leadsText(d.EtcdLeads, n.GetSelf().GetEtcd() != nil), n.GetMember(),
			leadsText(n.GetSelf().GetMetalog().GetLeads(), n.GetSelf().GetMetalog() != nil), termText(n.GetSelf().GetMetalog()), applied, lag,
			leadsText(d.ControlLeads, n.GetSelf() != nil), cmp.Or(d.Version, "-"))
		if why := cmp.Or(d.Error, d.Waiting, n.GetSelf().GetMetalog().GetError()); why != "" {
			remarks = append(remarks, fmt.Sprintf("%s: %s", name, why))
		}
	}
	err := w.Flush()
	for _, r := range remarks {
		fmt.Fprintln(out, r)
	}
	return err
}

func termText(m *scribev1.ReplicaStatus) string {
	if m == nil {
		return "-"
	}
	return strconv.FormatUint(m.GetTerm(), 10)
}

// leadsText says whether a part of a node leads, if that is known.
func leadsText(leads, known bool) string {
	switch {
	case !known:
		return "-"
	case leads:
		return "leads"
	}
	return "follows"
}

// printCellNodes shows the nodes of a cell after its status, if it has any; else the replicas of its metadata logs, and the members of the etcd that connects them.
func printCellNodes(out io.Writer, h *survey.CellHealth) error {
	switch {
	case h.NodesErr != nil:
		return errors.New(plainText(h.NodesErr))
	case len(h.Nodes) > 0:
		fmt.Fprintln(out)
		return printNodes(out, h.Nodes)
	}
	return errors.Join(printReplicas(out, h.Replicas()), printEtcd(out, h.Etcd()))
}

func printReplicas(out io.Writer, replicas []survey.CellReplica) error {
	if len(replicas) == 0 {
		return nil
	}
	w := newTable(out, "\nREPLICA\tURL\tMETALOG\tTERM\tAPPLIED\tLAG")
	for _, r := range replicas {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", r.Process, r.URL, leadsText(r.Leads, true), r.Term, r.Applied, r.Lag)
	}
	err := w.Flush()
	for _, r := range replicas {
		if r.Error != "" {
			fmt.Fprintf(out, "%s: %s\n", r.Process, r.Error)
		}
	}
	return err
}

func printEtcd(out io.Writer, members []survey.EtcdMember) error {
	if len(members) == 0 {
		return nil
	}
	w := newTable(out, "\nETCD\tMEMBER\tSTATE\tTERM\tSIZE")
	for _, m := range members {
		if m.Error != "" {
			fmt.Fprintf(w, "%s\t-\taway\t-\t-\n", m.URL)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", m.URL, m.Member, leadsText(m.Leads, true), m.Term, units.About(m.Size))
	}
	err := w.Flush()
	for _, m := range members {
		if m.Error != "" {
			fmt.Fprintf(out, "%s: %s\n", m.URL, m.Error)
		}
	}
	return err
}
