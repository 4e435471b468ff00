// Package helm tests the chart of deploy/helm: every file of values in its folder ci renders with Helm's own packages (render, a module of its own, which TestMain builds), into manifests that Kubernetes, the Prometheus
// operator and cert-manager know to the last field; what the manifests say of each other is so; values that can't be right are refused in clear words. The containers' commands run as processes: their flags and settings
// are those of the program, the nodes become a cell, and the agent forwards to it.
package helm
