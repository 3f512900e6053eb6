package store

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failpoint"
	"github.com/trtship/trtship/internal/failure"
)

// Ref names an artifact for good.
type Ref struct {
	Kind   artifact.Kind   `json:"kind"`
	Digest artifact.Digest `json:"digest"`
}

// String writes the kind and the digest.
func (r Ref) String() string { return string(r.Kind) + " " + string(r.Digest) }

func recordRef(r artifact.Record) Ref { return Ref{r.Kind, r.Digest} }

// Root says that a run refers to artifacts. It lives as long as the run's
// folder does.
type Root struct {
	Run  string `json:"run"` // id
	Dir  string `json:"dir"` // absolute folder of the run
	Refs []Ref  `json:"refs"`
}

// SetRoot keeps what a run refers to.
func (s *Store) SetRoot(r Root) error {
	text, err := json.Marshal(r)
	if err == nil {
		// Two projects can share a store, and their runs an id.
		name := plain(r.Run) + "-" + string(sumOf(r.Dir))[len("sha256:"):][:12] + ".json"
		err = s.writeFile(filepath.Join(s.root, rootsDir, name), text)
	}
	if err != nil {
		return publishError(Draft{Kind: "references of run"}, err)
	}
	return nil
}

// roots reads all roots. One that cannot be read is an error: collecting
// without it could remove what its run refers to.
func (s *Store) roots() (paths []string, roots []Root, err error) {
	dir := filepath.Join(s.root, rootsDir)
	entries, err := s.fs.ReadDir(dir)
	if err != nil {
		return nil, nil, failure.New(failure.Artifact, "list references of runs: %w", err).At(dir)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var r Root
		text, err := s.readAll(path)
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			return nil, nil, failure.New(failure.Artifact, "read references of run: %w", err).At(path).
				WithHint("Remove the file if its run is gone.")
		}
		paths, roots = append(paths, path), append(roots, r)
	}
	return paths, roots, nil
}

// users maps artifacts to the runs whose folders are there.
func (s *Store) users() (map[Ref][]string, error) {
	_, roots, err := s.roots()
	if err != nil {
		return nil, err
	}
	m := map[Ref][]string{}
	for _, r := range roots {
		if s.gone(r.Dir) {
			continue
		}
		for _, ref := range r.Refs {
			m[ref] = append(m[ref], r.Run)
		}
	}
	return m, nil
}

// gone reports that a folder was certainly removed. A folder that cannot be
// asked for (permission, a disk that is not mounted) may still be there.
func (s *Store) gone(dir string) bool {
	_, err := s.fs.Lstat(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, err = s.fs.Lstat(filepath.Dir(dir))
	return err == nil || !s.mountedElsewhere(dir)
}

// mountedElsewhere reports whether nothing above dir but the root is there, as
// with a disk that is not mounted.
func (s *Store) mountedElsewhere(dir string) bool {
	for d := filepath.Dir(dir); d != filepath.Dir(d); d = filepath.Dir(d) {
		if _, err := s.fs.Lstat(d); err == nil {
			entries, err := s.fs.ReadDir(d)
			return err != nil || len(entries) == 0 // an empty mount point
		}
	}
	return true
}

// GCOptions says what to keep besides what runs refer to.
type GCOptions struct {
	DryRun   bool
	Younger  time.Duration // artifacts published within this time are kept
	Evidence bool          // remove damaged artifacts too
}

// Collected is what GC removed, or would remove.
type Collected struct {
	Artifacts []string `json:"artifacts"`
	Entries   int      `json:"entries"`
	Bytes     int64    `json:"bytes"`
	Kept      int      `json:"kept"`
}

var (
	gcEntry    = failpoint.New("store.gc.entry")
	gcArtifact = failpoint.New("store.gc.artifact")
)

// GC removes artifacts that no run refers to, and the cache entries that need
// them. It works alone: while a run is under way it fails at once.
func (s *Store) GC(o GCOptions) (Collected, error) {
	var c Collected
	unlock, err := s.alone()
	if err != nil {
		return c, err
	}
	defer unlock()
	s.sweep()
	live, err := s.live(o)
	if err != nil {
		return c, err
	}
	items, err := s.List()
	if err != nil {
		return c, err
	}
	dead := map[Ref]bool{}
	var remove []Item
	for _, it := range items {
		if it.Err == nil && (live[recordRef(it.Record)] || s.young(it, o)) {
			c.Kept++
			continue
		}
		dead[recordRef(it.Record)] = true
		remove = append(remove, it)
		c.Artifacts = append(c.Artifacts, filepath.Base(filepath.Dir(it.Dir)))
		c.Bytes += it.Size
	}
	// Entries go first: an entry without its artifacts would be a promise broken.
	if err := s.collectEntries(dead, o, &c); err != nil || o.DryRun {
		return c, err
	}
	for _, it := range remove {
		if err := s.discard(filepath.Dir(it.Dir)); err != nil {
			return c, failure.New(failure.Artifact, "remove %s: %w", it.ID(), err)
		}
	}
	s.discardIdle()
	if o.Evidence {
		return c, s.discardEvidence()
	}
	return c, nil
}

// idle is how long what only saves time is kept without being rewritten.
const idle = 30 * 24 * time.Hour

// discardIdle removes the locks of keys, which nobody can hold now, and what was
// remembered about sources long ago. What it cannot remove costs nothing.
func (s *Store) discardIdle() {
	for dir, keep := range map[string]func(name, path string) bool{
		locksDir: func(name, _ string) bool { return name == "store" },
		sourcesDir: func(_, path string) bool {
			info, err := s.fs.Lstat(path)
			return err != nil || s.now().Sub(info.ModTime()) < idle
		},
	} {
		entries, err := s.fs.ReadDir(filepath.Join(s.root, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if path := filepath.Join(s.root, dir, e.Name()); !keep(e.Name(), path) {
				_ = s.fs.Remove(path)
			}
		}
	}
}

// alone trades the shared lock for an exclusive one.
func (s *Store) alone() (restore func(), err error) {
	ok := false
	if err = s.use.Unlock(); err == nil {
		ok, err = s.use.TryLock()
	}
	restore = func() {
		_ = s.use.Unlock()
		_ = s.use.RLock()
	}
	if err != nil || !ok {
		_ = s.use.RLock()
		if err == nil {
			err = errors.New("a run is using it")
		}
		return nil, failure.New(failure.Artifact, "collect garbage of the store: %w", err).At(s.root).
			WithHint("Wait until no run is under way.")
	}
	return restore, nil
}

// live returns what runs refer to, and forgets the roots of runs that are gone.
func (s *Store) live(o GCOptions) (map[Ref]bool, error) {
	paths, roots, err := s.roots()
	if err != nil {
		return nil, err
	}
	live := map[Ref]bool{}
	for i, r := range roots {
		if s.gone(r.Dir) {
			if !o.DryRun {
				_ = s.fs.Remove(paths[i])
			}
			continue
		}
		for _, ref := range r.Refs {
			live[ref] = true
		}
	}
	return live, nil
}

func (s *Store) young(it Item, o GCOptions) bool {
	if o.Younger <= 0 {
		return false
	}
	info, err := s.fs.Lstat(filepath.Join(filepath.Dir(it.Dir), recordFile))
	return err == nil && s.now().Sub(info.ModTime()) < o.Younger
}

func (s *Store) collectEntries(dead map[Ref]bool, o GCOptions, c *Collected) error {
	return s.eachEntry(func(path string, e *Entry, err error) error {
		useless := err != nil
		if err == nil {
			for _, rec := range e.Artifacts {
				if dead[recordRef(rec)] {
					useless = true
				}
			}
		}
		if !useless {
			return nil
		}
		c.Entries++
		if o.DryRun {
			return nil
		}
		if err := s.fs.Remove(path); err != nil {
			return failure.New(failure.Artifact, "remove cache entry: %w", err).At(path)
		}
		return gcEntry.Hit()
	})
}

// discard moves an artifact to scratch, where it is out of sight in one step,
// and removes it there.
func (s *Store) discard(dir string) error {
	to, err := s.scratchName("discard")
	if err != nil {
		return err
	}
	if err := s.fs.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := s.fs.Rename(dir, to); err != nil {
		return err
	}
	if err := gcArtifact.Hit(); err != nil {
		return err
	}
	return removeAll(s.fs, to)
}

func (s *Store) discardEvidence() error {
	dir := filepath.Join(s.root, damagedDir)
	entries, err := s.fs.ReadDir(dir)
	if err != nil {
		return failure.New(failure.Artifact, "list evidence: %w", err).At(dir)
	}
	for _, e := range entries {
		if err := removeAll(s.fs, filepath.Join(dir, e.Name())); err != nil {
			return failure.New(failure.Artifact, "remove evidence: %w", err).At(dir)
		}
	}
	return nil
}
