// Package schema defines how a category's messages become the columns of Arrow record batches.
//
// A [Schema] is one version: the message format and the [Field]s. A field has a name, a [Type], a path into the message and a
// default. A schema is written as YAML or JSON ([Parse], [Schema.Marshal], [Schema.YAML]). A type has its own text form
// ([Type.Text]).
//
//	format: json
//	fields:
//	  - {name: ts, type: timestamp, nullable: false, aliases: [time]}
//	  - {name: status, type: int32}
//	  - {name: agent, type: dictionary, path: request.headers."user-agent"}
//	  - {name: zones, type: "map<struct<requests int64, discarded int64>>"}
//
// [Schema.Validate] reports all problems at once, as an [Error] with line numbers and suggestions.
//
// # Versions
//
// A [History] holds all versions of a category in one text, which the category keeps as its schema. A new version must be
// compatible with the newest one, so that stored messages read as before ([Compare]); any other change must be forced. A [Cache]
// keeps parsed histories.
//
// A category without a schema uses [Opaque], version 0: its messages are bytes.
package schema
