package helm

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"scribe/internal/transport/principal"
	"scribe/test/program"
)

// TestManifests: what the manifests of each shape say of each other is so, and pods may do no more than they must.
func TestManifests(t *testing.T) {
	for _, file := range shapes(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r := mustRender(t, file)
			for _, w := range r.workloads() {
				checkPod(t, r, w)
			}
			checkSelectors(t, r)
			if w := r.nodes(); w != nil {
				checkNodes(t, r, w)
			}
		})
	}
}

// TestObjects: a release has what its values ask for, and nothing else.
func TestObjects(t *testing.T) {
	for file, want := range map[string]string{
		"defaults.yaml": "ConfigMap/scribe-nodes Pod/scribe-test-ready PodDisruptionBudget/scribe Service/scribe Service/scribe-nodes ServiceAccount/scribe StatefulSet/scribe",
		"agent.yaml":    "ConfigMap/scribe-agent DaemonSet/scribe-agent ServiceAccount/scribe-agent",
		"everything.yaml": "Certificate/scribe Certificate/scribe-agent Certificate/scribe-ca Certificate/scribe-prometheus ConfigMap/scribe-agent ConfigMap/scribe-dashboard-agents ConfigMap/scribe-dashboard-categories " +
			"ConfigMap/scribe-dashboard-cell ConfigMap/scribe-dashboard-metadata ConfigMap/scribe-nodes DaemonSet/scribe-agent Issuer/scribe-ca Issuer/scribe-selfsigned NetworkPolicy/scribe Pod/scribe-test-ready " +
			"PodDisruptionBudget/scribe PrometheusRule/scribe-alerts PrometheusRule/scribe-recording Service/scribe Service/scribe-agent Service/scribe-nodes ServiceAccount/scribe ServiceAccount/shipper " +
			"ServiceMonitor/scribe-agent ServiceMonitor/scribe-nodes StatefulSet/scribe",
	} {
		r := mustRender(t, chart+"/ci/"+file)
		var got []string
		for _, text := range r.objects {
			var o object
			if err := json.Unmarshal(text, &o); err != nil {
				t.Fatal(err)
			}
			got = append(got, o.Kind+"/"+o.Metadata.Name)
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s makes\n%s\nwant\n%s", file, text, want)
		}
	}

	r := mustRender(t, chart+"/ci/defaults.yaml")
	if budget := spec[struct{ MaxUnavailable int }](r, r.find("PodDisruptionBudget", "scribe")); budget.MaxUnavailable != 1 {
		t.Errorf("%d nodes may be away at a time", budget.MaxUnavailable)
	}
	spread := spec[struct {
		Template struct {
			Spec struct {
				Affinity struct {
					PodAntiAffinity struct {
						RequiredDuringSchedulingIgnoredDuringExecution []struct {
							TopologyKey   string
							LabelSelector selector
						}
					}
				}
				TopologySpreadConstraints []struct {
					TopologyKey   string
					LabelSelector selector
				}
			}
		}
	}](r, r.find("StatefulSet", "scribe")).Template.Spec
	own := r.nodes().Selector.MatchLabels
	hosts, zones := spread.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, spread.TopologySpreadConstraints
	if len(hosts) != 1 || hosts[0].TopologyKey != "kubernetes.io/hostname" || !maps.Equal(hosts[0].LabelSelector.MatchLabels, own) ||
		len(zones) != 1 || zones[0].TopologyKey != "topology.kubernetes.io/zone" || !maps.Equal(zones[0].LabelSelector.MatchLabels, own) {
		t.Errorf("nodes are not apart: %+v", spread)
	}
	r = mustRender(t, chart+"/ci/secure.yaml")
	if role := r.find("ServiceAccount", "scribe").Metadata.Annotations["eks.amazonaws.com/role-arn"]; role == "" {
		t.Error("the service account has no role")
	}
}

// checkPod: what a pod mounts is there, it is stopped in good order, and it may do little.
func checkPod(t *testing.T, r release, w workload) {
	t.Helper()
	spec, c := w.Template.Spec, w.container()
	volumes := map[string]bool{}
	for _, v := range w.VolumeClaimTemplates {
		volumes[v.Metadata.Name] = true
	}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap == nil {
			continue
		}
		for _, pod := range w.names() {
			config := strings.ReplaceAll(c.argument("--config"), "$(POD_NAME)", pod)
			if _, ok := r.find("ConfigMap", v.ConfigMap.Name).Data[path.Base(config)]; !ok {
				t.Errorf("%s starts with %s, which its ConfigMap lacks", pod, config)
			}
		}
	}
	mounts := map[string]bool{}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s mounts the volume %s, which it does not have", w.Name, m.Name)
		}
		mounts[m.MountPath] = true
	}
	for _, flag := range []string{"--data", "--spool", "--blob-path", "--config", "--tls-cert", "--tls-ca", "--socket"} {
		if file := c.argument(flag); file != "" && !mounts[file] && !mounts[path.Dir(file)] {
			t.Errorf("%s %s of %s is on no volume", flag, file, w.Name)
		}
	}
	limit, err := time.ParseDuration(c.argument("--shutdown-timeout"))
	if grace := time.Duration(spec.TerminationGracePeriodSeconds) * time.Second; err != nil || grace < limit+10*time.Second {
		t.Errorf("%s is killed after %v, and may take %v to stop: %v", w.Name, grace, limit, err)
	}
	if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks {
		t.Errorf("%s gets a variable SCRIBE_... for each Service", w.Name)
	}
	security := c.SecurityContext
	if security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation || !security.ReadOnlyRootFilesystem || !slices.Equal(security.Capabilities.Drop, []string{"ALL"}) ||
		security.Capabilities.Add != nil || spec.SecurityContext.SeccompProfile.Type != "RuntimeDefault" || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Errorf("%s may do more than it needs: %+v, %+v", w.Name, security, spec.SecurityContext)
	}
	if spec.ServiceAccountName != "default" {
		r.find("ServiceAccount", spec.ServiceAccountName)
	}
	_, port, err := net.SplitHostPort(c.argument("--listen"))
	if err != nil || port != strconv.Itoa(c.Ports[0].ContainerPort) {
		t.Errorf("%s listens at %s, and its port is %d", w.Name, c.argument("--listen"), c.Ports[0].ContainerPort)
	}
}

// checkSelectors: every selector finds the pods, or the Service, that it is for.
func checkSelectors(t *testing.T, r release) {
	t.Helper()
	var pods []map[string]string
	for _, w := range r.workloads() {
		if !includes(w.Template.Metadata.Labels, w.Selector.MatchLabels) {
			t.Errorf("%s does not select its own pods", w.Name)
		}
		pods = append(pods, w.Template.Metadata.Labels)
	}
	find := func(o object, wanted map[string]string, among []map[string]string) {
		t.Helper()
		count := 0
		for _, labels := range among {
			if includes(labels, wanted) {
				count++
			}
		}
		if count != 1 {
			t.Errorf("%s %s selects %d of %v", o.Kind, o.Metadata.Name, count, among)
		}
	}
	var services []map[string]string
	for _, o := range r.list("Service") {
		find(o, spec[service](r, o).Selector, pods)
		services = append(services, o.Metadata.Labels)
	}
	for _, o := range r.list("PodDisruptionBudget") {
		find(o, spec[struct{ Selector selector }](r, o).Selector.MatchLabels, pods)
	}
	for _, o := range r.list("NetworkPolicy") {
		find(o, spec[struct{ PodSelector selector }](r, o).PodSelector.MatchLabels, pods)
	}
	for _, o := range r.list("ServiceMonitor") {
		find(o, spec[struct{ Selector selector }](r, o).Selector.MatchLabels, services)
	}
}

// checkNodes: nodes are found by names that are there before they are ready, at the ports at which they listen.
func checkNodes(t *testing.T, r release, w *workload) {
	t.Helper()
	c := w.container()
	names := w.names()
	o := r.find("Service", w.ServiceName)
	headless := spec[service](r, o)
	if headless.ClusterIP != "None" || !headless.PublishNotReadyAddresses || w.PodManagementPolicy != "Parallel" {
		t.Errorf("nodes do not find each other before they are ready: %+v, %s", headless, w.PodManagementPolicy)
	}
	_, port, err := net.SplitHostPort(c.argument("--listen"))
	if err != nil {
		t.Fatal(err)
	}
	if security := w.Template.Spec.SecurityContext; !security.RunAsNonRoot || !strings.Contains(readText(t, "../../Dockerfile"), "\nUSER "+strconv.Itoa(security.RunAsUser)+":"+strconv.Itoa(security.FSGroup)+"\n") {
		t.Errorf("nodes are not the image's user: %+v", security)
	}
	if len(names) == 1 {
		want := "http://$(POD_NAME)." + w.ServiceName + "." + o.Metadata.Namespace + ".svc.cluster.local:" + port
		if c.argument("--node") != "" || c.argument("--advertise") != want {
			t.Errorf("a node alone is a cell of one process: %q", c.Args)
		}
		return
	}
	cluster := strings.Split(c.argument("--cluster"), ",")
	if len(cluster) != len(names) || c.argument("--node") != "$(POD_NAME)" {
		t.Fatalf("%d nodes have --cluster %q", len(names), cluster)
	}
	for i, text := range cluster {
		name, address, _ := strings.Cut(text, "=")
		host, at, err := net.SplitHostPort(address)
		// A node that listens at another port than others look for it waits for ever.
		if err != nil || name != names[i] || at != port || !strings.HasPrefix(host, name+"."+w.ServiceName+"."+o.Metadata.Namespace+".svc.") {
			t.Errorf("the pod %s, which listens at %s, is %s in --cluster", names[i], port, text)
		}
	}
	first, _ := strconv.Atoi(port)
	for i, p := range headless.Ports {
		if p.Port != first+i || c.Ports[i].ContainerPort != first+i || p.TargetPort != c.Ports[i].Name {
			t.Errorf("of the node's three ports from %d on, number %d is %+v in the Service and %+v in the pod", first, i, p, c.Ports[i])
		}
	}
	if len(headless.Ports) != 3 {
		t.Errorf("a node has three ports, and its Service %d", len(headless.Ports))
	}
	if w.MinReadySeconds < 1 {
		t.Error("an upgrade goes on as soon as a node says that it is ready")
	}
}

// TestWhoIsIn: the certificates that cert-manager makes are for the names at which processes are called, and say of what kind their owners are.
func TestWhoIsIn(t *testing.T) {
	r := mustRender(t, chart+"/ci/everything.yaml")
	type certificate struct {
		DNSNames   []string
		Usages     []string
		SecretName string
		Subject    struct{ OrganizationalUnits []string }
	}
	of := func(name string) certificate { return spec[certificate](r, r.find("Certificate", name)) }
	nodes, agent, prometheus := of("scribe"), of("scribe-agent"), of("scribe-prometheus")
	w := r.nodes()
	for text := range strings.SplitSeq(w.container().argument("--cluster"), ",") {
		host, _, _ := net.SplitHostPort(text[strings.Index(text, "=")+1:])
		if !slices.Contains(nodes.DNSNames, host) {
			t.Errorf("the certificate of the nodes is not for %s", host)
		}
	}
	upstream := r.workloads()[1].container().argument("--upstream")
	for _, host := range []string{principal.MemberHost, strings.TrimSuffix(strings.TrimPrefix(upstream, "https://"), ":7420"), "scribe.example.net"} {
		if !slices.Contains(nodes.DNSNames, host) {
			t.Errorf("the certificate of the nodes is not for %s", host)
		}
	}
	for _, c := range []struct {
		certificate
		kind principal.Kind
	}{{nodes, principal.Member}, {agent, principal.Agent}, {prometheus, principal.Client}} {
		if !slices.Equal(c.Subject.OrganizationalUnits, []string{c.kind.Unit()}) || !slices.Contains(c.Usages, "client auth") {
			t.Errorf("%s: %+v does not make a %v of its owner", c.SecretName, c.certificate, c.kind)
		}
	}
	var config struct{ Advertise string }
	if err := yaml.Unmarshal([]byte(r.find("ConfigMap", "scribe-agent").Data["agent.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	if host := strings.TrimSuffix(strings.TrimPrefix(config.Advertise, "https://"), ":7410"); !slices.Contains(agent.DNSNames, host) {
		t.Errorf("the certificate of agents is not for %s", config.Advertise)
	}
}

// TestMonitoringIsThatOfDeploy: rules and dashboards are those of deploy, to the letter, and series are called as these want it.
func TestMonitoringIsThatOfDeploy(t *testing.T) {
	r := mustRender(t, chart+"/ci/everything.yaml")
	for _, name := range []string{"alerts", "recording"} {
		var want, got any
		if err := yaml.Unmarshal([]byte(readText(t, "../../deploy/prometheus/"+name+".yml")), &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(r.find("PrometheusRule", "scribe-"+name).Spec, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the rules %s are not those of deploy/prometheus: %v", name, err)
		}
	}
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	boards := map[string]string{}
	for _, o := range r.list("ConfigMap") {
		if o.Metadata.Labels["grafana_dashboard"] == "1" {
			maps.Copy(boards, o.Data)
		}
	}
	for _, file := range files {
		if boards[filepath.Base(file)] != strings.TrimRight(readText(t, file), "\n") {
			t.Errorf("the dashboard %s is not in a ConfigMap as it is", file)
		}
	}
	if len(boards) != len(files) {
		t.Errorf("%d dashboards, want %d", len(boards), len(files))
	}
	// The jobs of a release whose name says nothing begin with scribe all the same.
	r = mustRender(t, chart+"/ci/everything.yaml", with(t, "fullnameOverride: eu\nmetrics: {job: ''}"))
	var jobs []string
	for _, o := range r.list("ServiceMonitor") {
		for _, e := range spec[struct {
			Endpoints []struct {
				Relabelings []struct{ TargetLabel, Replacement string }
			}
		}](r, o).Endpoints {
			jobs = append(jobs, e.Relabelings[0].TargetLabel+"="+e.Relabelings[0].Replacement)
		}
	}
	if !slices.Equal(jobs, []string{"job=scribe-eu", "job=scribe-eu-agents"}) {
		t.Errorf("the jobs are %q", jobs)
	}
}

// TestValuesAreRefused: each file of ci/refused has a mistake, and the error says what its first line says.
func TestValuesAreRefused(t *testing.T) {
	files, err := filepath.Glob(chart + "/ci/refused/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		want, ok := strings.CutPrefix(strings.SplitN(readText(t, file), "\n", 2)[0], "# want: ")
		if !ok {
			t.Fatalf("%s does not begin with what it wants", file)
		}
		base := chart + "/ci/defaults.yaml"
		if strings.HasPrefix(filepath.Base(file), "secure-") {
			base = chart + "/ci/secure.yaml"
		}
		if strings.HasPrefix(filepath.Base(file), "bare-") {
			base = os.DevNull
		}
		if _, err := render(t, base, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", filepath.Base(file), err, want)
		}
	}
}

// TestValuesAreInTheSchema: the schema knows every value that the chart has, so that none is refused as unknown.
func TestValuesAreInTheSchema(t *testing.T) {
	var values, schema map[string]any
	if err := yaml.Unmarshal([]byte(readText(t, chart+"/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(readText(t, chart+"/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	definitions := schema["definitions"].(map[string]any)
	var compare func(at string, values, schema map[string]any)
	compare = func(at string, values, schema map[string]any) {
		if name, ok := schema["$ref"].(string); ok {
			schema = definitions[path.Base(name)].(map[string]any)
		}
		known, ok := schema["properties"].(map[string]any)
		if !ok {
			return // it may be anything
		}
		if closed, ok := schema["additionalProperties"].(bool); !ok || closed {
			t.Errorf("%s: the schema lets unknown names in", at)
		}
		for name, value := range values {
			of, ok := known[name].(map[string]any)
			if inner, is := value.(map[string]any); ok && is {
				compare(at+"."+name, inner, of)
			} else if !ok {
				t.Errorf("the schema does not know %s.%s", at, name)
			}
		}
		for name := range known {
			// A probe may say more than the chart does, and global is Helm's.
			if _, ok := values[name]; !ok && !strings.HasSuffix(at, "Probe") && name != "global" {
				t.Errorf("%s.%s has no default in values.yaml", at, name)
			}
		}
	}
	compare("", values, schema)
}

// TestNotes: what is said after an installation is about what was installed.
func TestNotes(t *testing.T) {
	for file, want := range map[string]string{
		"defaults.yaml": `WARNING: insecure is true`,
		"secure.yaml":   `scribe cert server scribe --host scribe-0\.scribe-nodes\.default\.svc\.cluster\.local,`,
		"five.yaml":     `A cell of 5 nodes, cell-0 to cell-4\.`,
		"one.yaml":      `A cell of one process, scribe-0\.`,
		"agent.yaml":    `(?s)^[^W]*An agent on every host forwards to http://scribe\.cell\.svc`,
	} {
		notes := regexp.MustCompile(`(?m)^found symbolic link.*\n`).ReplaceAllString(mustRender(t, chart+"/ci/"+file).notes, "")
		if !regexp.MustCompile(want).MatchString(notes) {
			t.Errorf("the notes of %s lack %s:\n%s", file, want, notes)
		}
	}
}

// TestPackage: what releases have of the chart is the chart, with the version, and the same bytes each time.
func TestPackage(t *testing.T) {
	var packed []string
	for _, name := range []string{"a.tgz", "b.tgz"} {
		file := filepath.Join(t.TempDir(), name)
		if out, err := program.Command(t.Context(), "../../tools/chart.sh", "1.2.3-rc.1", file).CombinedOutput(); err != nil {
			t.Fatalf("tools/chart.sh: %v\n%s", err, out)
		}
		packed = append(packed, file)
	}
	if readText(t, packed[0]) != readText(t, packed[1]) {
		t.Error("two packages of one chart differ")
	}
	values := chart + "/ci/everything.yaml"
	got, err := renderChart(t, packed[0], values)
	if err != nil {
		t.Fatal(err)
	}
	if labels := got.find("StatefulSet", "scribe").Metadata.Labels; labels["helm.sh/chart"] != "scribe-1.2.3-rc.1" || labels["app.kubernetes.io/version"] != "1.2.3-rc.1" {
		t.Errorf("the package is of another version: %v", labels)
	}
	want := mustRender(t, values)
	if len(got.objects) != len(want.objects) {
		t.Fatalf("the package renders %d objects, and the folder %d", len(got.objects), len(want.objects))
	}
	for i := range want.objects {
		if text := strings.ReplaceAll(string(got.objects[i]), "1.2.3-rc.1", "0.0.0"); text != string(want.objects[i]) {
			t.Errorf("the package has\n%s\nand the folder\n%s", text, want.objects[i])
		}
	}
}
