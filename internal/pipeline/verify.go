package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/provenance"
	"github.com/trtship/trtship/report"
)

// manifestBytes is the largest manifest.json that is read.
const manifestBytes = 256 << 20

// runEntries are the names that a run's folder may hold.
var runEntries = map[string]bool{
	"artifacts": true, "logs": true, "reports": true,
	"config.yaml": true, "environment.json": true, "manifest.json": true, "report.json": true, provenance.FileName: true,
}

// VerifyRun holds a run's folder to its own documents: every file of every
// artifact to the manifest, the manifest to the report, and both to the
// statement of provenance. It changes nothing. The error is for a context that
// ended.
func VerifyRun(ctx context.Context, dir string) (provenance.Found, error) {
	v := &runVerifier{dir: dir, found: provenance.Found{Problems: []provenance.Problem{}}}
	v.documents()
	err := v.artifacts(ctx)
	if err == nil {
		err = v.statement(ctx)
	}
	if err == nil {
		v.strangers()
	}
	v.found.Settle()
	return v.found, err
}

type runVerifier struct {
	dir      string
	found    provenance.Found
	manifest *Manifest
	report   *report.Report
	want     map[string]string // digest by path in the run's folder, as the manifest has it
}

// read decodes one document; what cannot be used is a problem.
func (v *runVerifier) read(name string, most int64, decode func([]byte) error) bool {
	text, err := provenance.ReadFile(filepath.Join(v.dir, name), most)
	if errors.Is(err, fs.ErrNotExist) {
		v.found.Say(provenance.Missing, name, "%s", "")
		return false
	}
	if err != nil {
		v.found.Say(provenance.Unreadable, name, "%s", withoutPath(err))
		return false
	}
	if err := decode(text); err != nil {
		v.found.Say(provenance.Invalid, name, "%s", err)
		return false
	}
	return true
}

func withoutPath(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return err.Error()
}

func (v *runVerifier) documents() {
	v.read("report.json", report.MaxBytes, func(b []byte) (err error) {
		v.report, err = report.Decode(b)
		return err
	})
	v.read("manifest.json", manifestBytes, func(b []byte) error {
		m := &Manifest{}
		if err := json.Unmarshal(b, m); err != nil {
			return err
		}
		if m.Format != ManifestFormat {
			return fmt.Errorf("its format is %q, want %q", m.Format, ManifestFormat)
		}
		v.manifest = m
		return nil
	})
	if v.manifest == nil {
		return
	}
	if v.manifest.State != "finished" {
		v.found.Say(provenance.Invalid, "manifest.json", "the run has not finished: its state is %q", v.manifest.State)
	}
	if v.report == nil {
		return
	}
	if a, b := v.manifest.Run, v.report.Run.ID; a != b {
		v.found.Say(provenance.Invalid, "manifest.json", "it is of run %q, report.json of run %q", a, b)
	}
	if a, b := v.manifest.Config, v.report.Run.ConfigHash; a != b {
		v.found.Say(provenance.Invalid, "manifest.json", "config_digest is not that of report.json")
	}
	v.summaries()
}

// summaries holds the report's list of artifacts to the manifest.
func (v *runVerifier) summaries() {
	made := map[string]string{}
	for _, s := range v.manifest.Stages {
		for _, a := range s.Artifacts {
			made[a.ID()] = string(a.Digest)
		}
	}
	for _, a := range v.report.Artifacts {
		digest, ok := made[a.ID]
		switch {
		case !ok:
			v.found.Say(provenance.Invalid, "report.json", "artifact %q is not in manifest.json", a.ID)
		case digest != a.Digest:
			v.found.Say(provenance.Invalid, "report.json", "artifact %s has another digest in manifest.json", a.ID)
		}
	}
}

// artifacts hashes the configuration and what the links lead to.
func (v *runVerifier) artifacts(ctx context.Context) error {
	if v.manifest == nil {
		return nil
	}
	v.want = map[string]string{}
	config, err := provenance.CheckFiles(ctx, v.dir, []provenance.Want{{Path: "config.yaml", Digest: v.manifest.Config, Size: -1}}, false)
	v.found.Add(config, "")
	if err != nil {
		return err
	}
	names := newLinkNames()
	for _, s := range v.manifest.Stages {
		for _, a := range s.Artifacts {
			if err := v.artifact(ctx, a, names.next(a, s.Name)); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(v.dir, "artifacts"))
	if err != nil {
		v.found.Say(provenance.Missing, "artifacts", "%s", "")
		return nil //nolint:nilerr // a problem, not a failure
	}
	for _, e := range entries {
		if !names[e.Name()] {
			v.found.Say(provenance.Extra, "artifacts/"+e.Name(), "%s", "")
		}
	}
	return nil
}

// artifact holds one artifact to its record. Its link is followed, once; no
// other is.
func (v *runVerifier) artifact(ctx context.Context, a artifact.Record, link string) error {
	below := "artifacts/" + link
	err := artifact.CheckRecord(a)
	if err == nil {
		err = artifact.CheckPath(link)
	}
	if err != nil || strings.Contains(link, "/") {
		v.found.Say(provenance.Invalid, "manifest.json", "artifact %q: %v", a.ID(), err)
		return ctx.Err()
	}
	want := make([]provenance.Want, 0, len(a.Files))
	for _, f := range a.Files {
		want = append(want, provenance.Want{Path: f.Path, Digest: string(f.Digest), Size: f.Size})
		v.want[path.Join(below, f.Path)] = string(f.Digest)
	}
	dir := filepath.Join(v.dir, "artifacts", link)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		detail := ""
		if _, err := os.Lstat(dir); err == nil {
			detail = "the store does not have it any more"
		}
		v.found.Say(provenance.Missing, below, "%s", detail)
		return ctx.Err()
	}
	found, err := provenance.CheckFiles(ctx, dir, want, true)
	v.found.Add(found, below)
	return err
}

// statement holds the statement of provenance to the manifest, whose files have
// been hashed, and its byproducts to their files.
func (v *runVerifier) statement(ctx context.Context) error {
	if _, err := os.Lstat(filepath.Join(v.dir, provenance.FileName)); v.manifest != nil && !v.made() && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s *provenance.Statement
	ok := v.read(provenance.FileName, provenance.MaxBytes, func(b []byte) (err error) {
		s, err = provenance.Decode(b)
		return err
	})
	if !ok {
		return nil
	}
	by, err := provenance.CheckFiles(ctx, v.dir, s.Byproducts, false)
	v.found.Add(by, "")
	if err != nil || v.manifest == nil {
		return err
	}
	said := map[string]bool{}
	for _, w := range s.Subjects {
		digest, ok := v.want[w.Path]
		switch {
		case said[w.Path]:
			v.found.Say(provenance.Invalid, provenance.FileName, "subject %q is there twice", w.Path)
		case !ok:
			v.found.Say(provenance.Invalid, provenance.FileName, "subject %q is not in manifest.json", w.Path)
		case w.Digest != digest:
			v.found.Say(provenance.Invalid, provenance.FileName, "subject %q does not have the digest of manifest.json", w.Path)
		}
		said[w.Path] = true
	}
	for name := range v.want {
		if !said[name] {
			v.found.Say(provenance.Invalid, provenance.FileName, "%q of manifest.json is no subject", name)
		}
	}
	return nil
}

// made reports whether the run made any artifact.
func (v *runVerifier) made() bool {
	for _, s := range v.manifest.Stages {
		if len(s.Artifacts) > 0 {
			return true
		}
	}
	return false
}

// strangers are files beside the documents.
func (v *runVerifier) strangers() {
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		v.found.Say(provenance.Unreadable, ".", "%s", withoutPath(err))
		return
	}
	for _, e := range entries {
		if !runEntries[e.Name()] {
			v.found.Say(provenance.Extra, e.Name(), "%s", "")
		}
	}
}
