package app

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"scribe/internal/base/config"
)

// BackupConfig says where backups of the metadata are kept, and how often a process makes one.
type BackupConfig struct {
	// To is a folder, or s3://BUCKET/PREFIX with ?endpoint=URL&region=REGION where they are not those of the store of payloads, whose credentials are used; empty = with
	// the payloads.
	To string `yaml:"to" flag:"backup-to,up,serve,backups" help:"where backups are kept: a folder, or s3://BUCKET/PREFIX (default: with the payloads)"`
	// Every is how often a backup is made; 0 = only when somebody asks for one.
	Every time.Duration `yaml:"every" default:"0s" min:"0s" max:"8760h" flag:"backup-every,up,serve" help:"how often a backup is made, where the newest one is as old; 0s = only with scribe backup create"`
	// Keep is how many backups of the cell remain when one was made because it was due.
	Keep int `yaml:"keep" default:"14" min:"1" max:"10000" flag:"backup-keep,up,serve" help:"how many backups remain after one of --backup-every; older ones are deleted"`
}

// makesBackups reports whether the process can make backups: it has the logs and the control plane, whatever others have as well.
func (c *Config) makesBackups() bool { return c.Has(ControlPlane) && c.Has(Metalog) }

// checkBackup checks what the process is told of backups.
func (c *Config) checkBackup(v *config.Violations) {
	if _, err := c.BackupBlobs(); err != nil {
		v.Add("Backup.To", "%w", err)
	}
	switch {
	case c.Backup.Every == 0:
	case !c.makesBackups():
		v.Add("Backup.Every", "the process needs both roles, controlplane and metalog, to make backups")
	case c.Backup.Every < time.Minute:
		v.Add("Backup.Every", "invalid value %v: want at least a minute, or 0s", c.Backup.Every)
	case c.Backup.To == "" && !c.needsBlobs():
		v.Add("Backup.To", "missing: there is no store of payloads to keep backups in")
	}
}

// BackupBlobs returns the configuration of a process whose store of payloads is where c keeps backups.
func (c *Config) BackupBlobs() (Config, error) {
	to := *c
	switch rest, isBucket := strings.CutPrefix(c.Backup.To, "s3://"); {
	case c.Backup.To == "":
	case isBucket:
		place, err := url.Parse("s3://" + rest)
		if err != nil || place.Host == "" {
			return to, fmt.Errorf("invalid value %q: want s3://BUCKET/PREFIX", c.Backup.To)
		}
		to.Blobs.Kind, to.Blobs.S3.Bucket, to.Blobs.S3.Prefix, to.Blobs.S3.CreateBucket = "s3", place.Host, strings.Trim(place.Path, "/"), false
		for name, values := range place.Query() {
			switch name {
			case "endpoint":
				to.Blobs.S3.Endpoint = values[0]
			case "region":
				to.Blobs.S3.Region = values[0]
			default:
				return to, fmt.Errorf("invalid value %q: %s is not known, want endpoint and region", c.Backup.To, name)
			}
		}
		if to.Blobs.S3.Endpoint == "" {
			return to, fmt.Errorf("invalid value %q: the payloads are not on S3: add ?endpoint=URL", c.Backup.To)
		}
	case strings.Contains(c.Backup.To, "://"):
		return to, fmt.Errorf("invalid value %q: want a folder, or s3://BUCKET/PREFIX", c.Backup.To)
	default:
		to.Blobs.Kind, to.Blobs.Path = "file", c.Backup.To
	}
	return to, nil
}

// backupPlace names where backups are, for people.
func (c *Config) backupPlace() string {
	if to, err := c.BackupBlobs(); err == nil {
		return to.blobSource()
	}
	return c.Backup.To
}

// errNoBackups means that the process can't keep backups.
var errNoBackups = errors.New("the process has no store of payloads: set --backup-to where it runs")
