package helm

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// release is what was rendered.
type release struct {
	t       *testing.T
	objects []json.RawMessage
	notes   string
}

// object is what the tests read of a manifest, whatever its kind is.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
	} `json:"metadata"`
	Data map[string]string `json:"data"`
	Spec json.RawMessage   `json:"spec"`
}

// workload is the part of a StatefulSet or DaemonSet.
type workload struct {
	Name                string
	Replicas            int
	ServiceName         string
	PodManagementPolicy string
	MinReadySeconds     int
	Selector            selector
	Template            struct {
		Metadata struct{ Labels, Annotations map[string]string }
		Spec     pod
	}
	VolumeClaimTemplates []struct {
		Metadata struct{ Name string }
	}
}

type selector struct{ MatchLabels map[string]string }

type pod struct {
	TerminationGracePeriodSeconds int
	EnableServiceLinks            *bool
	AutomountServiceAccountToken  *bool
	ServiceAccountName            string
	SecurityContext               struct {
		RunAsNonRoot       bool
		RunAsUser, FSGroup int
		SeccompProfile     struct{ Type string }
	}
	Containers []container
	Volumes    []struct {
		Name      string
		ConfigMap *struct{ Name string }
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name, Value string
		ValueFrom   *struct {
			FieldRef     *struct{ FieldPath string }
			SecretKeyRef *struct{ Name, Key string }
		}
	}
	Ports []struct {
		Name          string
		ContainerPort int
	}
	VolumeMounts []struct {
		Name, MountPath string
	}
	LivenessProbe, ReadinessProbe *probe
	SecurityContext               struct {
		AllowPrivilegeEscalation *bool
		ReadOnlyRootFilesystem   bool
		Capabilities             struct{ Add, Drop []string }
	}
}

type probe struct {
	HTTPGet *struct{ Path, Port, Scheme, Host string }
}

type service struct {
	ClusterIP                string
	PublishNotReadyAddresses bool
	Selector                 map[string]string
	Ports                    []struct {
		Name       string
		Port       int
		TargetPort string
	}
}

// list returns the objects of a kind.
func (r release) list(kind string) (list []object) {
	r.t.Helper()
	for _, text := range r.objects {
		var o object
		if err := json.Unmarshal(text, &o); err != nil {
			r.t.Fatal(err)
		}
		if o.Kind == kind {
			list = append(list, o)
		}
	}
	return list
}

// find returns an object that must be there.
func (r release) find(kind, name string) object {
	r.t.Helper()
	for _, o := range r.list(kind) {
		if o.Metadata.Name == name {
			return o
		}
	}
	r.t.Fatalf("there is no %s %s", kind, name)
	return object{}
}

// spec decodes the spec of an object.
func spec[T any](r release, o object) (s T) {
	r.t.Helper()
	if err := json.Unmarshal(o.Spec, &s); err != nil {
		r.t.Fatalf("%s %s: %v", o.Kind, o.Metadata.Name, err)
	}
	return s
}

// workloads are what has pods.
func (r release) workloads() (list []workload) {
	r.t.Helper()
	for _, kind := range []string{"StatefulSet", "DaemonSet"} {
		for _, o := range r.list(kind) {
			w := spec[workload](r, o)
			w.Name = o.Metadata.Name
			list = append(list, w)
		}
	}
	return list
}

// nodes are the StatefulSet of nodes; nil if there is none.
func (r release) nodes() *workload {
	r.t.Helper()
	for _, o := range r.list("StatefulSet") {
		w := spec[workload](r, o)
		w.Name = o.Metadata.Name
		return &w
	}
	return nil
}

// names are those of a workload's pods. One of a DaemonSet has some name.
func (w *workload) names() (names []string) {
	for i := range w.Replicas {
		names = append(names, fmt.Sprintf("%s-%d", w.Name, i))
	}
	if w.Replicas == 0 {
		names = []string{w.Name + "-x7k2p"}
	}
	return names
}

// container is the only one of a pod.
func (w *workload) container() container { return w.Template.Spec.Containers[0] }

// argument is the value of a flag in the arguments of a container; "" if it is not there.
func (c container) argument(flag string) string {
	for i, a := range c.Args {
		if a == flag {
			return c.Args[i+1]
		}
	}
	return ""
}

// started is a container's command line in a pod, as Kubernetes starts it: variables are put in their places. Those from Secrets have what secret returns.
func (c container) started(pod string, secret func(name, key string) string) (env, args []string) {
	values := map[string]string{}
	expand := func(s string) string {
		for name, value := range values {
			s = strings.ReplaceAll(s, "$("+name+")", value)
		}
		return s
	}
	for _, e := range c.Env {
		value := expand(e.Value)
		if from := e.ValueFrom; from != nil && from.FieldRef != nil {
			value = pod // metadata.name is the only one
		} else if from != nil {
			value = secret(from.SecretKeyRef.Name, from.SecretKeyRef.Key)
		}
		values[e.Name] = value
		env = append(env, e.Name+"="+value)
	}
	for _, a := range c.Args {
		args = append(args, expand(a))
	}
	return env, args
}

// includes reports whether labels are those that a selector wants.
func includes(labels, wanted map[string]string) bool {
	for name, value := range wanted {
		if labels[name] != value {
			return false
		}
	}
	return len(wanted) > 0
}
