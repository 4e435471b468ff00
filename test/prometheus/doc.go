// Package prometheus tests what is deployed to watch cells, deploy/prometheus and deploy/grafana, with the real Prometheus: the rules are
// valid, each alert passes its unit test and has a runbook, and every expression of a dashboard returns something where every role, a node,
// a secure cell and an agent are scraped. Then processes are killed and stores break, and the right alerts fire, and no others.
//
// Alerts wait for minutes, so that what passes by itself wakes nobody. The suite gives Prometheus a copy of the rules with seconds in their
// place: promtool's unit tests are for the times.
//
// It needs prometheus and promtool (Debian's package prometheus).
package prometheus
