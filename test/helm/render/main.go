// Command render renders a chart as `helm template` does, with Helm's own packages, and checks each manifest against the types of Kubernetes, of the Prometheus operator and of cert-manager: a field that
// they do not have, or that stands twice, is an error. It prints the manifests on standard output, as an array of JSON objects, and the notes on standard error.
//
//	render -chart DIR [-release NAME] [-namespace NAME] [-values FILE,...]
//
// It has a module of its own, so that the program does not depend on these packages.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	folder := flag.String("chart", "", "folder or archive of the chart")
	release := flag.String("release", "scribe", "name of the release")
	namespace := flag.String("namespace", "default", "its namespace")
	values := flag.String("values", "", "files with values, separated by commas: the last one wins")
	flag.Parse()
	objects, notes, err := render(*folder, *release, *namespace, *values)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprint(os.Stderr, notes)
	if err := json.NewEncoder(os.Stdout).Encode(objects); err != nil {
		log.Fatal(err)
	}
}

// render returns the manifests of a release, and its notes.
func render(folder, release, namespace, files string) (objects []json.RawMessage, notes string, err error) {
	types, err := knownTypes()
	if err != nil {
		return nil, "", err
	}
	chart, err := loader.Load(folder)
	if err != nil {
		return nil, "", fmt.Errorf("load the chart: %w", err)
	}
	if err := chart.Validate(); err != nil {
		return nil, "", fmt.Errorf("the chart's metadata: %w", err)
	}
	given := chartutil.Values{}
	for file := range strings.SplitSeq(files, ",") {
		if file == "" {
			continue
		}
		more, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return nil, "", fmt.Errorf("values in %s: %w", file, err)
		}
		given = chartutil.CoalesceTables(more, given)
	}
	// It also checks the values against the chart's schema.
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, "", err
	}
	rendered, err := (engine.Engine{Strict: true}).Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	names := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasSuffix(file, "NOTES.txt") {
			notes = rendered[file]
			continue
		}
		if strings.HasPrefix(path.Base(file), "_") {
			continue
		}
		manifests := releaseutil.SplitManifests(rendered[file])
		for _, key := range slices.Sorted(maps.Keys(manifests)) {
			object, name, failed := check(types, manifests[key])
			switch {
			case failed != nil:
				err = errors.Join(err, fmt.Errorf("%s: %w\n%s", file, failed, manifests[key]))
			case object == nil: // comments alone
			case names[name]:
				err = errors.Join(err, fmt.Errorf("%s: there are two of %s", file, name))
			default:
				names[name] = true
				objects = append(objects, object)
			}
		}
	}
	return objects, notes, err
}

// knownTypes are the types of Kubernetes, and those of others that the chart may use.
func knownTypes() (*runtime.Scheme, error) {
	types := runtime.NewScheme()
	return types, errors.Join(scheme.AddToScheme(types), monitoring.AddToScheme(types), certmanager.AddToScheme(types))
}

// check returns a manifest as JSON, and what it is called; nil if it is empty. It fails if the type of the manifest is not known, or lacks a field.
func check(types *runtime.Scheme, manifest string) (object json.RawMessage, name string, err error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	if object, err = yaml.YAMLToJSONStrict([]byte(manifest)); err != nil || string(object) == "null" {
		return nil, "", err
	}
	if err := json.Unmarshal(object, &head); err != nil {
		return nil, "", err
	}
	if head.Metadata.Name == "" {
		return nil, "", errors.New("it has no name")
	}
	typed, err := types.New(schema.FromAPIVersionAndKind(head.APIVersion, head.Kind))
	if err != nil {
		return nil, "", err
	}
	return object, fmt.Sprintf("%s %s/%s", head.Kind, head.Metadata.Namespace, head.Metadata.Name), yaml.UnmarshalStrict([]byte(manifest), typed)
}
