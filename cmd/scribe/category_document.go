package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"scribe/columnar/schema"
	"scribe/internal/base/units"
	scribev1 "scribe/proto/scribe/v1"
)

// maxDocuments bounds the categories of a file, and maxDocumentBytes its bytes.
const (
	maxDocuments     = 10_000
	maxDocumentBytes = 8 << 20
)

// documentKeys are the keys of a category's document beside its name, in the order in which they are shown, with the flags whose values they
// take. They are those of "scribe category describe".
var documentKeys = []struct{ key, flag string }{
	{"owner", "owner"},
	{"retention", "retention"},
	{"shards", "shards"},
	{"shard_by", "shard-by"},
	{"auto_split", "auto-split"},
	{"encrypted", "encrypted"},
	{"delivery", "delivery"},
	{"max_message", "max-message"},
	{"quota_per_second", "quota"},
	{"quota_mode", "quota-mode"},
	{"read_quota_per_second", "read-quota"},
	{"read_requests_per_second", "read-requests"},
	{"read_quota_mode", "read-quota-mode"},
	{"priority", "priority"},
	{"window", "window"},
	{"linger", "linger"},
	{"repeatable", "repeatable"},
	{"cache", "cache"},
}

const (
	nameKey   = "name"
	schemaKey = "schema"
)

// categoryProperties are properties as the flags of create and update read and print them.
type categoryProperties struct {
	categoryFlags

	delivery enumFlag[scribev1.Delivery]
	flags    *cobra.Command // has the flags, and is never run
}

// newCategoryProperties returns those of a new category.
func newCategoryProperties() *categoryProperties {
	p := &categoryProperties{flags: &cobra.Command{}}
	p.addFlags(p.flags)
	p.delivery = enumFlag[scribev1.Delivery]{scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, "delivery"}
	p.flags.Flags().Var(&p.delivery, "delivery", "")
	return p
}

// propertiesOf returns those of a category.
func propertiesOf(c *scribev1.Category) *categoryProperties {
	p := newCategoryProperties()
	p.owner, p.retention, p.shards = c.GetOwner(), units.Duration(c.GetRetention().AsDuration()), c.GetShards()
	p.shardBy = shardBy{rule: cmp.Or(c.GetShardBy(), scribev1.ShardBy_SHARD_BY_STICKY), field: c.GetShardField()}
	p.autoSplit, p.encrypted, p.maxMessageBytes = c.GetAutoSplit(), c.GetEncrypted(), units.Bytes(c.GetMaxMessageBytes())
	p.quota, p.readQuota, p.readRequests = units.Bytes(c.GetQuotaBytesPerSecond()), units.Bytes(c.GetReadQuotaBytesPerSecond()), c.GetReadQuotaRequestsPerSecond() //nolint:gosec // a quota beyond int64 is none
	p.quotaMode.value = cmp.Or(c.GetQuotaMode(), scribev1.QuotaMode_QUOTA_MODE_BLOCK)
	p.readQuotaMode.value = cmp.Or(c.GetReadQuotaMode(), scribev1.QuotaMode_QUOTA_MODE_BLOCK)
	p.priority.value = cmp.Or(c.GetPriority(), scribev1.Priority_PRIORITY_NORMAL)
	p.repeatable.value = cmp.Or(c.GetRepeatable(), scribev1.Repeatability_REPEATABILITY_NONE)
	p.delivery.value = cmp.Or(c.GetDelivery(), scribev1.Delivery_DELIVERY_AT_LEAST_ONCE)
	p.cache.policy = c.GetCache()
	if w := c.GetOrderingWindow(); w != nil {
		p.window.duration = new(units.Duration(w.AsDuration()))
	}
	if l := c.GetLinger(); l != nil {
		p.linger.duration = new(units.Duration(l.AsDuration()))
	}
	return p
}

// text returns a property as its flag prints it.
func (p *categoryProperties) text(flag string) string {
	return p.flags.Flags().Lookup(flag).Value.String()
}

// categoryDocument returns a category as YAML that apply takes.
func categoryDocument(c *scribev1.Category) ([]byte, error) {
	doc := &yaml.Node{Kind: yaml.MappingNode}
	add := func(key string, value *yaml.Node) {
		doc.Content = append(doc.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	}
	scalar := func(text string) *yaml.Node {
		n := &yaml.Node{}
		n.SetString(text)
		switch (&yaml.Node{Kind: yaml.ScalarNode, Value: text}).ShortTag() {
		case "!!str", "!!null":
		default:
			n.Tag = "" // a number or a boolean needs no quotes: it is read as its text
		}
		return n
	}
	add(nameKey, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: c.GetName()})
	p := propertiesOf(c)
	for _, k := range documentKeys {
		if k.flag == "shards" && c.IsSplit() {
			continue // they are what they are
		}
		add(k.key, scalar(p.text(k.flag)))
	}
	h, err := schema.ParseHistory(c.GetSchema())
	if err != nil {
		return nil, fmt.Errorf("read the schema of category %s: %w", c.GetName(), err)
	}
	switch s := h.Latest(); {
	case h.Infer():
		add(schemaKey, scalar(inferSchema))
	case s != nil:
		text, err := withoutVersion(s).YAML()
		if err != nil {
			return nil, err
		}
		var inner yaml.Node
		if err := yaml.Unmarshal(text, &inner); err != nil {
			return nil, err
		}
		add(schemaKey, inner.Content[0])
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err = errors.Join(e.Encode(doc), e.Close())
	return b.Bytes(), err
}

// inferSchema stands for a schema that is inferred from the first messages.
const inferSchema = "infer"

// wantedCategory is a category as a document wants it.
type wantedCategory struct {
	name  string
	at    string // where the document is, for errors
	given *categoryProperties
	// schema is the text of the wanted schema, or infer; empty leaves it as it is.
	schema string
}

// parseCategories parses the documents of a file.
func parseCategories(file string, text []byte) ([]*wantedCategory, error) {
	var (
		all  []*wantedCategory
		errs []error
	)
	named := map[string]string{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		nodes := doc.Content
		if len(nodes) == 1 && nodes[0].Kind == yaml.SequenceNode {
			nodes = nodes[0].Content
		}
		for _, n := range nodes {
			if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
				continue // an empty document
			}
			w, err := parseCategory(file, n)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if other, again := named[w.name]; again {
				errs = append(errs, fmt.Errorf("%s: category %s is also at %s", w.at, w.name, other))
			}
			named[w.name] = w.at
			if all = append(all, w); len(all) > maxDocuments {
				return nil, fmt.Errorf("%s: more than %d categories: divide the file", file, maxDocuments)
			}
		}
	}
	if len(all) == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s: there is no category", file))
	}
	return all, errors.Join(errs...)
}

// parseCategory parses the document of one category.
func parseCategory(file string, n *yaml.Node) (*wantedCategory, error) {
	at := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", file, n.Line) }
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: a category is a mapping of keys to values, such as name: access", at(n))
	}
	w := &wantedCategory{at: at(n), given: newCategoryProperties()}
	var errs []error
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if seen[key.Value] {
			errs = append(errs, fmt.Errorf("%s: the key %s is there twice", at(key), key.Value))
		}
		seen[key.Value] = true
		if err := w.set(key.Value, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", at(key), key.Value, err))
		}
	}
	if w.name == "" && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s: the category has no name", at(n)))
	}
	if err := w.given.checkZeros(w.given.flags); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", at(n), err))
	}
	return w, errors.Join(errs...)
}

// set sets what a key says.
func (w *wantedCategory) set(key string, value *yaml.Node) (err error) {
	if key == schemaKey {
		w.schema, err = schemaOfNode(value)
		return err
	}
	i := slices.IndexFunc(documentKeys, func(k struct{ key, flag string }) bool { return k.key == key })
	if i < 0 && key != nameKey {
		names := []string{nameKey}
		for _, k := range documentKeys {
			names = append(names, k.key)
		}
		return fmt.Errorf("unknown key: want one of %s, %s", strings.Join(names, ", "), schemaKey)
	}
	if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null" {
		return errors.New("want one value; leave the key out to keep what the category has")
	}
	if key == nameKey {
		w.name = value.Value
		return nil
	}
	return w.given.flags.Flags().Set(documentKeys[i].flag, value.Value)
}

// schemaOfNode returns the text of a schema that is written as in a file of its own, or the word infer.
func schemaOfNode(n *yaml.Node) (string, error) {
	if n.Kind == yaml.ScalarNode && n.Value == inferSchema {
		return inferSchema, nil
	}
	if n.Kind != yaml.MappingNode {
		return "", errors.New("want infer, or the keys of a schema, such as format and fields")
	}
	text, err := yaml.Marshal(n)
	if err != nil {
		return "", err
	}
	s, err := schema.Parse(text)
	if err != nil {
		return "", fmt.Errorf("in the schema alone: %w", err)
	}
	return string(withoutVersion(s).Marshal()), nil
}

// withoutVersion returns a schema as one that is not stored yet: the cell numbers versions.
func withoutVersion(s *schema.Schema) *schema.Schema {
	first := *s
	first.Version = 1
	return &first
}
