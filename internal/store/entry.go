package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/report"
)

// EntryFormat is the tag of a cache entry. An entry with another tag is a miss.
const EntryFormat = "trtship-entry/1"

// Entry is what a stage made under a key, so that it need not be made again.
type Entry struct {
	Format    string            `json:"format"`
	Stage     string            `json:"stage"`
	Key       artifact.Digest   `json:"key"`
	Parts     []artifact.Part   `json:"parts"`
	Deps      []Dep             `json:"deps,omitempty"`
	Artifacts []artifact.Record `json:"artifacts"`
	Checks    []report.Check    `json:"checks"`
	Seconds   float64           `json:"seconds"` // how long the stage took
	Made      time.Time         `json:"made"`
}

// Dep is a file that was found to matter while a stage ran. Path is relative to
// the project's folder if the file lies in it.
type Dep struct {
	Path   string          `json:"path"`
	Digest artifact.Digest `json:"digest"`
}

func (s *Store) entryPath(stage string, key artifact.Digest) string {
	return filepath.Join(s.root, cacheDir, plain(stage), strings.TrimPrefix(string(key), "sha256:")+".json")
}

// Lookup returns the entry of a key whose artifacts are whole. If there is none
// that can be used, entry is nil and why says so in a few words; an artifact
// that is damaged has then been moved aside. Errors are for a store that could
// not be asked.
func (s *Store) Lookup(ctx context.Context, stage string, key artifact.Digest) (entry *Entry, arts []artifact.Artifact, why string, err error) {
	text, err := s.readAll(s.entryPath(stage, key))
	if isNotExist(err) {
		return nil, nil, "", nil
	}
	if err != nil {
		return nil, nil, "", failure.New(failure.Artifact, "read cache entry of %s: %w", stage, err).At(s.entryPath(stage, key))
	}
	entry, err = parseEntry(text)
	if err != nil || entry.Stage != stage || entry.Key != key {
		return nil, nil, "its cache entry cannot be read", nil //nolint:nilerr // an unreadable entry is a miss, never an error
	}
	for _, rec := range entry.Artifacts {
		a, err := s.Open(ctx, rec)
		if d, ok := errors.AsType[*Damage](err); ok {
			return nil, nil, d.Error(), nil
		}
		if err != nil {
			return nil, nil, "", err
		}
		arts = append(arts, a)
	}
	return entry, arts, "", nil
}

// parseEntry reads an entry; its last line is the digest of what is above it.
func parseEntry(text []byte) (*Entry, error) {
	body, sum, ok := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
	if !ok || sum != string(sumOf(body)) {
		return nil, errors.New("digest does not match")
	}
	var e Entry
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return nil, err
	}
	if e.Format != EntryFormat {
		return nil, fmt.Errorf("format is %q", e.Format)
	}
	for _, rec := range e.Artifacts {
		if err := artifact.CheckRecord(rec); err != nil {
			return nil, err
		}
	}
	return &e, nil
}

func sumOf(text string) artifact.Digest {
	sum := sha256.Sum256([]byte(text))
	return artifact.SumDigest(sum[:])
}

var entryWritten = failpoint.New("store.entry.written")

// Record keeps an entry. The artifacts that it names are in the store already.
func (s *Store) Record(e Entry) error {
	e.Format = EntryFormat
	e.Made = s.now().UTC()
	body, err := json.Marshal(e)
	if err != nil {
		return failure.New(failure.Artifact, "write cache entry of %s: %w", e.Stage, err)
	}
	text := fmt.Sprintf("%s\n%s\n", body, sumOf(string(body)))
	if err := s.writeFile(s.entryPath(e.Stage, e.Key), []byte(text)); err != nil {
		return publishError(Draft{Kind: artifact.Kind("cache entry of " + e.Stage)}, err)
	}
	return entryWritten.Hit()
}

// Forget removes the entry of a key.
func (s *Store) Forget(stage string, key artifact.Digest) error {
	if err := s.fs.Remove(s.entryPath(stage, key)); err != nil && !isNotExist(err) {
		return failure.New(failure.Artifact, "remove cache entry of %s: %w", stage, err)
	}
	return nil
}

// lastRun is what a project's last run of a stage depended on.
type lastRun struct {
	Parts []artifact.Part `json:"parts"`
}

func (s *Store) lastPath(project, stage string) string {
	return filepath.Join(s.root, lastDir, string(sumOf(project))[len("sha256:"):][:16], plain(stage)+".json")
}

// LastParts returns the parts of the key of a project's last run of a stage;
// nil if there was none. It only explains, so what cannot be read is none.
func (s *Store) LastParts(project, stage string) []artifact.Part {
	text, err := s.readAll(s.lastPath(project, stage))
	if err != nil {
		return nil
	}
	var l lastRun
	if json.Unmarshal(text, &l) != nil {
		return nil
	}
	return l.Parts
}

// SetLastParts keeps the parts of the key of a project's run of a stage.
func (s *Store) SetLastParts(project, stage string, parts []artifact.Part) error {
	text, err := json.Marshal(lastRun{Parts: parts})
	if err == nil {
		err = s.writeFile(s.lastPath(project, stage), text)
	}
	if err != nil {
		return failure.New(failure.Artifact, "write last key of %s: %w", stage, err)
	}
	return nil
}
